//! Frames of heap profiles besides those that are in a file of this host: inside of the allocator, in files that are gone, and in generated
//! code.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::naming::Naming;
use crate::fast_map::FastMap;
use crate::perf_map::{self, NamedRanges};
use crate::processes::Mapping;
use crate::profile::{Frame, is_allocation_function, is_of_allocator};
use crate::snapshot::SharedFrame;
use crate::symbolize::generated;

/// Maximum length of a perf map.
const MAX_PERF_MAP: u64 = perf_map::MAX_BYTES;

/// Frames of the allocator's own functions.
#[derive(Default)]
pub(super) struct AllocatorFrames {
    /// True for an allocation function, by the address of the frame, which is kept so that no other has this address.
    allocate: FastMap<*const Frame, (SharedFrame, bool)>,
}

impl AllocatorFrames {
    /// Number of innermost frames before the allocation function that the program has called. Without names, that is the last function of
    /// the allocator's file.
    pub(super) fn count(&mut self, frames: &[SharedFrame]) -> usize {
        let is_allocation = |frame: &SharedFrame| {
            let new = || (Arc::clone(frame), is_allocation_function(&frame.symbol));
            self.allocate.entry(Arc::as_ptr(frame)).or_insert_with(new).1
        };
        let of_file =
            || frames.iter().take_while(|frame| is_of_allocator(&frame.module)).count().checked_sub(1);
        frames.iter().rposition(is_allocation).or_else(of_file).unwrap_or(0)
    }
}

/// Names of generated code.
#[derive(Default)]
pub(super) struct PerfMapFile {
    names: NamedRanges,
    /// Frames with these names, by address.
    known: FastMap<u64, Vec<SharedFrame>>,
}

impl PerfMapFile {
    /// Reads the perf map, if there is one; the reason why it cannot be read is a remark.
    pub(super) fn of(naming: &Naming, profile: &Path, pid: u32, remarks: &mut Vec<String>) -> Self {
        let beside = || profile.with_file_name(format!("perf-{pid}.map"));
        let is_given = naming.perf_map.is_some();
        let path = naming.perf_map.clone().unwrap_or_else(beside);
        let mut names = NamedRanges::default();
        let mut text = Vec::new();
        let read = File::open(&path).and_then(|file| file.take(MAX_PERF_MAP + 1).read_to_end(&mut text));
        match read {
            Ok(_) if text.len() as u64 > MAX_PERF_MAP => {
                remarks.push(format!("{} is longer than {} MiB", path.display(), MAX_PERF_MAP >> 20));
            }
            Ok(_) => names.add_text(&text),
            Err(error) if is_given => remarks.push(format!("no names from {}: {error}", path.display())),
            Err(_) => {}
        }
        if names.bad_lines() > 0 {
            remarks.push(format!("{} lines of {} cannot be read", names.bad_lines(), path.display()));
        }
        Self { names, known: FastMap::default() }
    }

    /// Names the frames that are in no file.
    pub(super) fn add(&mut self, frames: Vec<SharedFrame>, is_jvm: bool) -> Vec<SharedFrame> {
        if self.names.is_empty() {
            return frames;
        }
        let mut named = Vec::with_capacity(frames.len());
        for frame in frames {
            if !frame.symbol.is_empty() || !frame.module.is_empty() {
                named.push(frame);
                continue;
            }
            let new = || {
                // A return address can be behind the end of the code.
                let name = self.names.find(frame.address.saturating_sub(1));
                name.map_or_else(|| vec![Arc::clone(&frame)], |name| generated(frame.address, name, is_jvm))
            };
            named.extend_from_slice(self.known.entry(frame.address).or_insert_with(new));
        }
        named
    }
}

/// Paths of mapped code.
pub(super) struct UnopenedPaths {
    /// By address.
    code: BTreeMap<u64, (Range<u64>, String)>,
    /// Frames with these paths, by address.
    known: FastMap<u64, SharedFrame>,
}

impl UnopenedPaths {
    pub(super) fn new(mappings: &[Mapping]) -> Self {
        let code = mappings.iter().filter(|mapping| mapping.executable);
        let by_begin = |mapping: &Mapping| {
            let path = mapping.path.display().to_string();
            (mapping.addresses.start, (mapping.addresses.clone(), path))
        };
        Self { code: code.map(by_begin).collect(), known: FastMap::default() }
    }

    /// Adds the paths of files that could not be opened.
    pub(super) fn add(&mut self, frames: &mut [SharedFrame]) {
        for frame in frames.iter_mut().filter(|frame| frame.module.is_empty()) {
            if let Some(known) = self.known.get(&frame.address) {
                *frame = Arc::clone(known);
            } else if let Some(path) = self.of(frame.address) {
                *frame = Arc::new(Frame { module: path.to_owned(), ..Frame::clone(frame) });
                self.known.insert(frame.address, Arc::clone(frame));
            }
        }
    }

    fn of(&self, address: u64) -> Option<&str> {
        let (_, (range, path)) = self.code.range(..address).next_back()?;
        // A return address can be behind the end of the code.
        range.contains(&(address - 1)).then_some(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_the_allocator_below_the_one_that_was_called_are_left_out() {
        let frame = |symbol: &str| Arc::new(Frame { symbol: symbol.to_owned(), ..Frame::default() });
        let frames =
            ["prof_backtrace", "je_malloc", "operator new(unsigned long)", "insert", "main"].map(frame);
        let allocator_frames = |frames: &[SharedFrame]| AllocatorFrames::default().count(frames);
        let shown: Vec<_> =
            frames[allocator_frames(&frames)..].iter().map(|frame| frame.symbol.as_str()).collect();
        assert_eq!(shown, ["operator new(unsigned long)", "insert", "main"]);
        assert_eq!(allocator_frames(&frames[3..]), 0, "no allocation function has a name");
        let of_allocator =
            Arc::new(Frame { module: "/usr/lib/libjemalloc.so.2".to_owned(), ..Frame::default() });
        let unnamed = [of_allocator.clone(), of_allocator, frames[3].clone(), frames[4].clone()];
        assert_eq!(allocator_frames(&unnamed), 1);
        for allocates in
            ["_rjem_calloc", "_rjem_je_malloc_default", "__rustc[8a0a]::__rust_alloc", "__rust_realloc"]
        {
            assert!(is_allocation_function(allocates), "{allocates}");
        }
        assert!(!is_allocation_function("malloc_trim") && !is_allocation_function("Pool::malloc"));
    }
}
