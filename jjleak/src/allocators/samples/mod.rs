//! Probes at which programs announce allocations that they sample themselves: notes of `<sys/sdt.h>` with OpenTelemetry's contract
//! (`otel_memory`, <https://github.com/open-telemetry/opentelemetry-ebpf-profiler>, design document 3), or that of Datadog's library
//! (`ddheap`), which differs in the weight.

mod descriptor;

use jjleak_common::samples::{Argument, Site};
use object::LittleEndian;
use object::read::elf::{ProgramHeader, SectionHeader};

use super::symbol_table::Elf;
use super::{
    Error, MissingFunction, MissingReason, ModuleAllocators, Placement, ProbePoint, ProbeSite,
    ProfiledAllocator, SampleProbe, Stepping, Unfollowed, families,
};
use crate::file_content::Content;

const NOTES: &str = ".note.stapsdt";
/// Its address shows by how much other addresses in the notes were moved (prelink).
const BASE: &str = ".stapsdt.base";
const OWNER: &[u8] = b"stapsdt";
const NOTE_KIND: u32 = 3;
/// Maximum size of the notes: those of libstdc++ and glibc have some kilobytes.
const MAX_NOTE_BYTES: u64 = 4 << 20;
/// Maximum number of probes of a provider in a file. Each call that the compiler has inlined is one.
const MAX_PROBES: usize = 512;

/// Providers in the order of preference. If a file has several, they announce the same blocks.
const PROVIDERS: [Provider; 2] = [
    Provider { name: "otel_memory", counts_points: false },
    Provider { name: "ddheap", counts_points: true },
];

struct Provider {
    name: &'static str,
    counts_points: bool,
}

/// A note.
#[derive(Debug, Clone, Copy)]
struct Note<'data> {
    address: u64,
    semaphore: u64,
    provider: &'data str,
    name: &'data str,
    arguments: &'data str,
}

/// Finds the probes in a file.
pub fn sample_sites(elf: Content<'_>) -> Result<ModuleAllocators, Error> {
    let file = Elf::parse(elf).map_err(Error::Parse)?;
    let notes = notes(&file);
    let mut found = ModuleAllocators::default();
    for provider in PROVIDERS {
        let of_provider: Vec<_> = notes.iter().filter(|note| note.provider == provider.name).collect();
        if of_provider.is_empty() {
            continue;
        }
        let mut sites = Vec::new();
        let mut refuse = |note: &Note<'_>, reason| {
            let name = format!("{}:{}", note.provider, note.name);
            found.unfollowed.push(Unfollowed::Function(MissingFunction { name, reason }));
        };
        for note in of_provider.iter().take(MAX_PROBES) {
            match site(&file, &provider, note) {
                Ok(site) => sites.push(site),
                Err(reason) => refuse(note, reason),
            }
        }
        if let Some(note) = of_provider.get(MAX_PROBES) {
            refuse(note, MissingReason::ManyProbes);
        }
        if !sites.is_empty() && !sites.iter().any(|site| site.point == ProbePoint::SampleFreed) {
            let name = format!("{}:free", provider.name);
            found
                .unfollowed
                .push(Unfollowed::Function(MissingFunction { name, reason: MissingReason::NoFrees }));
        }
        if let (Some(first), Some(note)) = (found.profiled.first(), of_provider.first()) {
            tracing::debug!("{} announces the samples of {}, too", note.provider, first.family);
            continue;
        }
        if !sites.is_empty() {
            found.profiled.push(ProfiledAllocator {
                family: provider.name.to_owned(),
                sites,
                missing: Vec::new(),
                mapping_functions: Vec::new(),
            });
        }
    }
    elf.check()?;
    Ok(found)
}

/// Notes of any provider.
fn notes<'data>(file: &Elf<'data>) -> Vec<Note<'data>> {
    let sections = file.elf_section_table();
    let section =
        |name: &str| sections.section_by_name(LittleEndian, name.as_bytes()).map(|(_, section)| section);
    let Some(section_of_notes) = section(NOTES) else { return Vec::new() };
    if section_of_notes.sh_size(LittleEndian) > MAX_NOTE_BYTES {
        return Vec::new();
    }
    let base = section(BASE).map(|base| base.sh_addr(LittleEndian));
    let mut notes = Vec::new();
    let Ok(Some(mut all)) = section_of_notes.notes(LittleEndian, file.data()) else { return notes };
    while let Ok(Some(note)) = all.next() {
        if note.name() == OWNER
            && note.n_type(LittleEndian).0 == NOTE_KIND
            && let Some(note) = Note::parse(note.desc(), base)
        {
            notes.push(note);
        }
    }
    notes
}

impl<'data> Note<'data> {
    fn parse(description: &'data [u8], base: Option<u64>) -> Option<Self> {
        let (words, texts) = description.split_at_checked(24)?;
        let word =
            |at: usize| -> Option<u64> { Some(u64::from_le_bytes(words.get(at..at + 8)?.try_into().ok()?)) };
        // Linkers that drop the base's section leave 0 in the notes: nothing was moved.
        let known = word(8).filter(|known| *known != 0);
        let moved = base.zip(known).map_or(0, |(base, known)| base.wrapping_sub(known));
        let mut texts = texts.split(|byte| *byte == 0).map(str::from_utf8);
        let mut text = || texts.next()?.ok();
        Some(Self {
            address: word(0)?.wrapping_add(moved),
            semaphore: match word(16)? {
                0 => 0,
                semaphore => semaphore.wrapping_add(moved),
            },
            provider: text()?,
            name: text()?,
            arguments: text().unwrap_or_default(),
        })
    }
}

/// The probe site of a note.
fn site(file: &Elf<'_>, provider: &Provider, note: &Note<'_>) -> Result<ProbeSite, MissingReason> {
    let (point, number) = match note.name {
        "alloc" => (ProbePoint::Sampled, 3),
        "free" => (ProbePoint::SampleFreed, 1),
        _ => return Err(MissingReason::OtherContract),
    };
    let arguments = descriptor::arguments(note.arguments, number).ok_or(MissingReason::Descriptor)?;
    let argument = |index: usize| arguments.get(index).copied().unwrap_or(Argument::ZERO);
    let site = Site {
        pointer: argument(0),
        size: argument(1),
        weighted_bytes: argument(2),
        counts_points: provider.counts_points.into(),
        producer: 0,
    };
    let offset = offset_of(file, note.address, true).ok_or(MissingReason::OutsideCode)?;
    let semaphore = match note.semaphore {
        0 => None,
        address => Some(offset_of(file, address, false).ok_or(MissingReason::Semaphore)?),
    };
    Ok(ProbeSite {
        names: vec![note.name.to_owned()],
        point,
        signature: families::NOTHING,
        // The kernel emulates a no-op, which the macros place.
        placement: Placement { delta: 0, cfa_words: 0, stepping: Stepping::EmulatedBranch, inside: None },
        function_offset: offset,
        function_length: 1,
        sample: Some(SampleProbe { site, semaphore, number: 0 }),
    })
}

/// File offset of an address in a loaded segment.
fn offset_of(file: &Elf<'_>, address: u64, executable: bool) -> Option<u64> {
    let loaded = file.elf_program_headers().iter().filter(|header| {
        header.p_type(LittleEndian) == object::elf::PT_LOAD
            && (!executable || header.p_flags(LittleEndian).contains(object::elf::PF_X))
    });
    loaded.into_iter().find_map(|header| {
        let distance = address.checked_sub(header.p_vaddr(LittleEndian))?;
        (distance < header.p_filesz(LittleEndian))
            .then(|| header.p_offset(LittleEndian).wrapping_add(distance))
    })
}

#[cfg(test)]
mod tests;
