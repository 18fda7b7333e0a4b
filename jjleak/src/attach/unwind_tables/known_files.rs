//! Files that the kernel side can resolve itself when they are newly mapped.

use aya::Ebpf;
use aya::maps::{HashMap, MapData};
use jjleak_common::names;
use jjleak_common::unwind::{CodeFile, CodePart, CodeRows, MAX_CODE_PARTS};

use super::rows::Stored;
use crate::attach::{Error, is_missing_key};
use crate::processes::FileVersion;
use crate::unwind::{VerifiedPart, VerifiedRows};

/// Width of the minor number in the kernel's device numbers (`MINORBITS` in `include/linux/kdev_t.h`).
pub(in crate::attach) const MINOR_BITS: u32 = 20;

/// The kernel side's table of files.
pub(super) struct KnownFiles {
    files: HashMap<MapData, CodeFile, CodeRows>,
    /// Files to be added.
    unpublished: Vec<(CodeFile, CodeRows)>,
}

impl KnownFiles {
    pub(super) fn new(ebpf: &mut Ebpf) -> Result<Self, Error> {
        let name = names::CODE;
        let files = ebpf.take_map(name).ok_or(Error::ObjectLacks { what: "map", name })?;
        Ok(Self { files: HashMap::try_from(files).map_err(Error::table)?, unpublished: Vec::new() })
    }

    /// Adds a file, for [`Self::publish`]. One with too many parts is left out.
    pub(super) fn add(&mut self, file: FileVersion, module: &VerifiedRows, rows: &Stored) {
        if let Some(parts) = as_kernel_parts(module.parts(), module.rows().text_start()) {
            let rows = CodeRows { first_page: rows.first_page(), pages: rows.pages, parts };
            self.unpublished.push((as_kernel_knows(file), rows));
        }
    }

    /// Lets the kernel side see added files. Their rows must be published.
    pub(super) fn publish(&mut self) {
        for (file, rows) in self.unpublished.drain(..) {
            if let Err(error) = self.files.insert(file, rows, 0) {
                tracing::debug!(%error, ?file, "cannot register unwind rows of a file for other processes");
            }
        }
    }

    /// Removes a file.
    pub(super) fn remove(&mut self, file: FileVersion) -> Result<(), Error> {
        match self.files.remove(&as_kernel_knows(file)) {
            Err(error) if !is_missing_key(&error) => Err(Error::table(error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// Parts of code for the kernel side; `None` if there are too many, or they overlap.
fn as_kernel_parts(parts: &[VerifiedPart], text_start: u64) -> Option<[CodePart; MAX_CODE_PARTS]> {
    let is_apart = parts.windows(2).all(|pair| pair[0].offsets.end <= pair[1].offsets.start);
    let mut places = [CodePart::default(); MAX_CODE_PARTS];
    if parts.len() > MAX_CODE_PARTS || !is_apart {
        return None;
    }
    for (place, VerifiedPart { offsets, addend }) in places.iter_mut().zip(parts) {
        let text = text_start.wrapping_sub(*addend);
        *place = CodePart { begin: offsets.start, end: offsets.end, text };
    }
    Some(places)
}

fn as_kernel_knows(FileVersion { file, changed }: FileVersion) -> CodeFile {
    let (major, minor) = file.device;
    CodeFile {
        inode: file.inode,
        changed_s: changed.0,
        // Less than a second.
        changed_ns: u32::try_from(changed.1).unwrap_or_default(),
        device: major << MINOR_BITS | minor,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_side_knows_code_in_up_to_two_parts_that_share_no_page() {
        let part = |offsets, addend| VerifiedPart { offsets, addend };
        let [first, second] = as_kernel_parts(&[part(0x1000..0x3000, 0x10)], 0x5000).unwrap();
        assert_eq!(
            (first, second),
            (CodePart { begin: 0x1000, end: 0x3000, text: 0x4ff0 }, CodePart::default())
        );
        let bolt = [part(0x1000..0x3000, 0x1000), part(0x20_0000..0x40_0000, 0)];
        assert_eq!(as_kernel_parts(&bolt, 0x2000).unwrap()[1].text, 0x2000);
        assert_eq!(as_kernel_parts(&[part(0x1000..0x3000, 1), part(0x2000..0x4000, 2)], 0), None);
        assert_eq!(as_kernel_parts(&[0, 1, 2].map(|at| part(at << 12..(at + 1) << 12, at)), 0), None);
    }
}
