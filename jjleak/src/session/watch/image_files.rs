//! Files mapped by a process, counted for some reason, once per program image.

use std::collections::HashSet;

use jjleak_common::process::ImageId;

use crate::processes::FileVersion;

/// The counted files.
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

    /// Total number of files in all images.
    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    /// Forgets the counted files of an image. The total stays.
    pub(super) fn forget(&mut self, image: ImageId) {
        self.known.retain(|(of, _)| *of != image);
    }
}
