//! Files that a process maps and that are counted for a reason: once for each program image.

use std::collections::HashSet;

use jjleak_common::process::ImageId;

use crate::processes::FileVersion;

/// Counted files.
#[derive(Default)]
pub(super) struct ImageFiles {
    count: u64,
    known: HashSet<(ImageId, FileVersion)>,
}

impl ImageFiles {
    /// Counts a file of an image. Returns true if it was not counted for this image yet.
    pub(super) fn add(&mut self, image: ImageId, file: FileVersion) -> bool {
        let is_new = self.known.insert((image, file));
        self.count += u64::from(is_new);
        is_new
    }

    pub(super) fn contains(&self, image: ImageId, file: FileVersion) -> bool {
        self.known.contains(&(image, file))
    }

    /// Number of files, in all images.
    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    /// Forgets which files of an image were counted. The number stays.
    pub(super) fn forget(&mut self, image: ImageId) {
        self.known.retain(|(of, _)| *of != image);
    }
}
