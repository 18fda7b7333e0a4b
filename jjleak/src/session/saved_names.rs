//! Names for profiles in pprof's format that have addresses alone, such as those of `jemalloc_pprof`: from the files that the program
//! had mapped.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use jjleak_common::stack::StackFrame;

use super::heap_frames::AllocatorFrames;
use super::heap_profile::{raw_stack, unopened};
use crate::fast_map::{FastMap, FastSet};
use crate::pprof::MappedFile;
use crate::processes::{FileSources, ModuleTable, Unopened};
use crate::profile::{Frame, Profile, SharedFrame};
use crate::symbolize::StackNames;

/// A file of a profile: path and build ID.
type FileKey<'p> = (&'p str, &'p str);
/// Frames with names, by the address of the frame without one, which is kept so that no other has this address.
type Replacements = FastMap<*const Frame, (SharedFrame, Vec<SharedFrame>)>;

/// Adds the names; returns remarks on files without any.
pub(super) fn add(
    profile: &mut Profile,
    mapped: &[MappedFile],
    sources: &FileSources,
    names: &mut StackNames,
) -> Vec<String> {
    let mut files = BTreeMap::<FileKey<'_>, Vec<(Range<u64>, u64)>>::new();
    // jjleak's own profiles have the names that there were.
    if mapped.is_empty() {
        return Vec::new();
    }
    // A relative path leads to the program only where it was started, which its build ID tells.
    let is_file = |file: &&MappedFile| {
        file.path.starts_with('/') || !file.path.starts_with('[') && !file.build_id.is_empty()
    };
    for file in mapped.iter().filter(is_file) {
        let parts = files.entry((&file.path, &file.build_id)).or_default();
        parts.push((file.addresses.clone(), file.file_offset));
    }
    let mut replacements = Replacements::default();
    let mut failed = Vec::new();
    for ((path, build_id), frames) in unnamed(profile) {
        let Some(parts) = files.get(&(&*path, &*build_id)) else {
            // The vDSO and the like are no files.
            if !path.is_empty() && !path.starts_with('[') {
                let error = io::Error::other("the profile has neither its whole path nor a build ID");
                failed.push(Unopened { path: path.into(), error });
            }
            continue;
        };
        match sources.modules(Path::new(&path), &build_id, parts) {
            Ok(modules) => add_names(&frames, &modules, names, &mut replacements),
            Err(error) => failed.push(Unopened { path: path.into(), error }),
        }
    }
    if !replacements.is_empty() {
        replace(profile, &replacements);
    }
    unopened(&failed).into_iter().collect()
}

/// Frames without names, by file. Those of one location are one.
fn unnamed(profile: &Profile) -> BTreeMap<(String, String), Vec<SharedFrame>> {
    let mut files = BTreeMap::<_, Vec<SharedFrame>>::new();
    let mut seen = FastSet::default();
    for frame in profile.stacks.iter().flat_map(|stack| stack.frames.iter()) {
        if is_unnamed(frame) && seen.insert(Arc::as_ptr(frame)) {
            let file = (frame.module.clone(), frame.build_id.clone());
            files.entry(file).or_default().push(Arc::clone(frame));
        }
    }
    files
}

fn is_unnamed(frame: &Frame) -> bool {
    frame.symbol.is_empty() && frame.file.is_empty() && frame.address >> StackFrame::ADDRESS_BITS == 0
}

/// Adds the names of code in a file. An address is within the instruction that ran or called (`Location.address` in profile.proto).
fn add_names(
    unnamed: &[SharedFrame],
    modules: &ModuleTable,
    names: &mut StackNames,
    replacements: &mut Replacements,
) {
    let raw: Vec<_> = unnamed.iter().map(|frame| raw_stack(&[frame.address])).collect();
    let mut of_file = names.of_process(modules);
    of_file.look_up_all(raw.iter());
    for (raw, frame) in raw.iter().zip(unnamed) {
        let in_profile = |known: &SharedFrame| {
            let Frame { module, build_id, .. } = &**frame;
            Arc::new(Frame { module: module.clone(), build_id: build_id.clone(), ..Frame::clone(known) })
        };
        let frames = of_file.frames(raw).iter().map(in_profile).collect();
        replacements.insert(Arc::as_ptr(frame), (Arc::clone(frame), frames));
    }
    names.forget_unused();
}

fn replace(profile: &mut Profile, replacements: &Replacements) {
    let mut allocator = AllocatorFrames::default();
    for stack in &mut profile.stacks {
        if !stack.frames.iter().any(|frame| is_unnamed(frame)) {
            continue;
        }
        let mut frames = Vec::with_capacity(stack.frames.len());
        for frame in stack.frames.iter() {
            match replacements.get(&Arc::as_ptr(frame)) {
                Some((_, known)) => frames.extend_from_slice(known),
                None => frames.push(Arc::clone(frame)),
            }
        }
        stack.frames = frames[allocator.count(&frames)..].into();
    }
}
