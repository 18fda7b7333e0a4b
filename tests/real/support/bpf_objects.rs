//! A process's BPF objects in the kernel: maps, programs and links, identified by their IDs.

use std::collections::BTreeSet;
use std::fs;

use aya::maps::loaded_maps;
use aya::programs::{loaded_links, loaded_programs};

/// IDs of the objects that a process had open at each scan; complete if the scans were frequent enough.
#[derive(Debug, Clone, Default)]
pub(crate) struct BpfObjects {
    maps: BTreeSet<u32>,
    programs: BTreeSet<u32>,
    links: BTreeSet<u32>,
}

/// Number of objects of each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) maps: usize,
    pub(crate) programs: usize,
    pub(crate) links: usize,
}

impl BpfObjects {
    /// Adds the objects that a process has open now, from the information on its descriptors (`proc_pid_fdinfo(5)`).
    pub(crate) fn note(&mut self, pid: u32) {
        for file in fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten() {
            // Descriptors may be closed during the scan.
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

    /// Number of the recorded objects that still exist in the kernel, regardless of their holder.
    pub(crate) fn left(&self) -> Count {
        let maps = loaded_maps().flatten().filter(|it| self.maps.contains(&it.id()));
        let programs = loaded_programs().flatten().filter(|it| self.programs.contains(&it.id()));
        let links = loaded_links().flatten().filter(|it| self.links.contains(&it.id()));
        Count { maps: maps.count(), programs: programs.count(), links: links.count() }
    }
}
