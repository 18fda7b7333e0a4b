//! Examination of one mapped file.

use std::collections::BTreeSet;
use std::path::PathBuf;

use jjleak_common::unwind::RowKind;

use super::heap_profiles::{Environment, HeapProfiles};
use super::symbols::Symbols;
use crate::allocators::{Hints, ModuleAllocators, ProfiledAllocator, Unfollowed, find_sites, sample_sites};
use crate::file_content::{Content, LazyFile};
use crate::processes::Module;
use crate::unwind::{self, Verification};

/// Findings on a file.
#[derive(Debug)]
pub struct Examined {
    /// Its path, as the process sees it.
    pub path: PathBuf,
    /// Build ID in hex; empty if there is none.
    pub build_id: String,
    /// Method of unwinding through its code.
    pub unwinding: Unwinding,
    /// Source of its names.
    pub symbols: Symbols,
    /// The allocators in it.
    pub allocators: Vec<ProfiledAllocator>,
    /// Allocators in it, or single functions of them, that cannot be profiled.
    pub unfollowed: Vec<Unfollowed>,
    /// Heap profiles that these allocators write themselves.
    pub heap_profiles: Vec<HeapProfiles>,
    /// Probes at which it announces samples of allocations.
    pub samples: ModuleAllocators,
}

/// Method of unwinding through the code of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unwinding {
    /// Call frame information, as unwind rows.
    Rows {
        /// Number of rows.
        rows: usize,
        /// Share of the described code whose rules cannot be expressed as rows, in millionths.
        unsupported_millionths: u64,
        /// Result of comparing the rows with the code.
        verification: Verification,
    },
    /// Frame pointers, if the code keeps them; the reason why there are no rows.
    FramePointers(String),
}

impl Examined {
    /// `addends` are those of all mappings of its code, see [`VerifiedRows::parts`]; `None` if one is uncertain.
    pub(super) fn new(module: &Module, addends: &[Option<u64>], environment: &Environment) -> Self {
        let file = module.content();
        let elf = file.as_ref().map_or(Content::Memory(&[]), Content::from);
        let unwinding = match &file {
            Ok(_) => unwinding(elf, addends),
            Err(error) => Unwinding::FramePointers(format!("cannot read it: {error}")),
        };
        let debug_file = module.find_debug_file(elf);
        let debug_file = debug_file.as_ref().and_then(|file| LazyFile::new(file).ok());
        let debug_file = debug_file.as_ref().map(Content::from);
        let found = find_sites(elf, Hints { debug_file, ..Hints::default() }).unwrap_or_default();
        let families = found.profiled.iter().map(|allocator| allocator.family.as_str());
        let hidden = found.unfollowed.iter().filter_map(|unfollowed| match unfollowed {
            Unfollowed::Hidden(family) => Some(*family),
            Unfollowed::Function(_) => None,
        });
        let families: BTreeSet<_> = families.chain(hidden).collect();
        let heap_profiles = families.iter().filter_map(|family| HeapProfiles::of(family, elf, environment));
        Self {
            heap_profiles: heap_profiles.collect(),
            path: module.path.clone(),
            build_id: module.build_id().to_owned(),
            unwinding,
            symbols: Symbols::of(elf, debug_file),
            unfollowed: found.unfollowed,
            allocators: found.profiled,
            samples: sample_sites(elf).unwrap_or_default(),
        }
    }
}

fn unwinding(elf: Content<'_>, addends: &[Option<u64>]) -> Unwinding {
    let verified = match unwind::verified(elf) {
        Ok(verified) => verified,
        Err(error) => return Unwinding::FramePointers(error.to_string()),
    };
    let is_verified =
        |addend: &Option<u64>| addend.is_some_and(|it| verified.parts().iter().any(|part| part.addend == it));
    if !addends.iter().all(is_verified) {
        let why = "the mapping of its code does not match its program headers";
        return Unwinding::FramePointers(why.to_owned());
    }
    let rows = verified.rows();
    let bytes = |kind| rows.coverage(kind).bytes;
    let all: u64 = rows.rows().last().map_or(0, |last| u64::from(last.address()));
    let described = all.saturating_sub(bytes(RowKind::None)).max(1);
    let unsupported_millionths = bytes(RowKind::Unsupported) * 1_000_000 / described;
    let verification = *verified.verification();
    Unwinding::Rows { rows: rows.rows().len(), unsupported_millionths, verification }
}
