//! What the kernel holds of a process for BPF: maps, programs and links, told from those of others by their numbers.

use std::collections::BTreeSet;
use std::fs;

use aya::maps::loaded_maps;
use aya::programs::{loaded_links, loaded_programs};

/// Numbers of what a process had open when it was looked at; all that it had, if it was looked at often enough.
#[derive(Debug, Clone, Default)]
pub(crate) struct BpfObjects {
    maps: BTreeSet<u32>,
    programs: BTreeSet<u32>,
    links: BTreeSet<u32>,
}

/// How many there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) maps: usize,
    pub(crate) programs: usize,
    pub(crate) links: usize,
}

impl BpfObjects {
    /// Takes in what a process has open now: its descriptors say what they are (`proc_pid_fdinfo(5)`).
    pub(crate) fn note(&mut self, pid: u32) {
        for file in fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten() {
            // Descriptors are closed while they are looked at.
            let about = fs::read_to_string(file.path()).unwrap_or_default();
            for line in about.lines() {
                let Some((key, value)) = line.split_once(':') else { continue };
                let into = match key {
                    "map_id" => &mut self.maps,
                    "prog_id" => &mut self.programs,
                    "link_id" => &mut self.links,
                    _ => continue,
                };
                into.extend(value.trim().parse::<u32>());
            }
        }
    }

    /// How many of those that were taken in the kernel still has, whoever holds them.
    pub(crate) fn left(&self) -> Count {
        let maps = loaded_maps().flatten().filter(|it| self.maps.contains(&it.id()));
        let programs = loaded_programs().flatten().filter(|it| self.programs.contains(&it.id()));
        let links = loaded_links().flatten().filter(|it| self.links.contains(&it.id()));
        Count { maps: maps.count(), programs: programs.count(), links: links.count() }
    }
}
