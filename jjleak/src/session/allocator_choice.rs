//! Selection of the allocators to profile.

use std::fs;
use std::path::{Path, PathBuf};

use crate::allocators::{
    self, CallFollowing, Hints, ModuleAllocators, NamedAllocator, find_sites, is_file, java_heap_sites,
    sample_sites,
};
use crate::file_content::Content;

/// Returns true if a path leads to a file through links, as `/lib/x86_64-linux-gnu/libc.so.6` does to one in `/usr/lib`.
fn is_link_to(named: &Path, path: &Path) -> bool {
    named.components().count() > 1 && fs::canonicalize(named).is_ok_and(|found| found == path)
}

/// Functions that get probes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Probed {
    /// Those of allocators.
    #[default]
    Allocators,
    /// Those of allocators that a table names.
    NamedOnly,
    /// Those with which JVMs announce objects in their heaps.
    JavaHeap,
    /// Those at which programs announce allocations that they sample themselves.
    Samples,
    /// None: stacks and weights come from elsewhere.
    Nothing,
}

/// Selection of allocators.
#[derive(Debug, Default)]
pub struct AllocatorChoice {
    /// Functions that get probes.
    pub probed: Probed,
    /// The only file to search, if one is given.
    pub only: Option<PathBuf>,
    /// Allocators named by the user.
    pub named: Vec<NamedAllocator>,
    /// Placement of the probes of the C library's `malloc`.
    pub following: CallFollowing,
}

impl AllocatorChoice {
    /// Finds the selected allocators in a file with this path and content, and its debug file, if any.
    pub(super) fn find_in(
        &self,
        path: &Path,
        elf: Content<'_>,
        debug_file: Option<Content<'_>>,
    ) -> Result<ModuleAllocators, allocators::Error> {
        match self.probed {
            Probed::Allocators | Probed::NamedOnly => {}
            Probed::JavaHeap => return java_heap_sites(path, elf, debug_file),
            Probed::Samples if self.is_other(path) => return Ok(ModuleAllocators::default()),
            Probed::Samples => return sample_sites(elf),
            Probed::Nothing => return Ok(ModuleAllocators::default()),
        }
        let is_only = match self.probed {
            Probed::NamedOnly => Some(false),
            _ => self.only.is_some().then(|| !self.is_other(path)),
        };
        let named: Vec<_> = self.named.iter().filter(|allocator| allocator.may_be_in(path)).collect();
        let following = self.following;
        let mut found = find_sites(elf, Hints { named: &named, debug_file, following })?;
        if is_only == Some(false) {
            // Tables apply to all files.
            found.profiled.retain(|allocator| named.iter().any(|named| named.name == allocator.family));
            found.unfollowed.clear();
        } else if is_only == Some(true) && found.profiled.is_empty() {
            // It contains no known family, but was requested.
            let named = [&NamedAllocator::with_prefix("", None)];
            found = find_sites(elf, Hints { named: &named, debug_file, following })?;
        }
        for named in named.iter().filter(|named| named.explicit && named.file.is_some()) {
            if !found.profiled.iter().any(|allocator| allocator.family == named.name) {
                tracing::warn!("{} has none of the functions of {}", path.display(), named.name);
            }
        }
        Ok(found)
    }

    /// Returns true if the user wants another file.
    fn is_other(&self, path: &Path) -> bool {
        self.only.as_deref().is_some_and(|only| !is_file(only, path) && !is_link_to(only, path))
    }

    /// Returns true if the user has named all functions of this allocator: a missing one is then an error of the user's table.
    pub(super) fn is_explicit(&self, family: &str) -> bool {
        self.named.iter().any(|named| named.explicit && named.name == family)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_can_be_named_by_a_link_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let (file, link, other) = (folder.join("libc.so.6"), folder.join("link"), folder.join("other"));
        fs::write(&file, "").unwrap();
        fs::write(&other, "").unwrap();
        symlink(&file, &link).unwrap();
        assert!(is_link_to(&link, &file));
        assert!(!is_link_to(&link, &other) && !is_link_to(Path::new("libc.so.6"), &file));
    }
}
