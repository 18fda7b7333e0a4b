//! How to get through generated code: a row for each blob.

use jjleak_common::unwind::{Row, RowKind, SavedFp};

use super::{Blob, BlobKind, CodeView};
use crate::unwind::GeneratedRows;

/// Where a frame of fixed size keeps its caller's frame pointer: below the return address, in words from the CFA.
const SAVED_FP: i64 = -2;
/// The CFA of a frame that a frame pointer was set up for, in words above it.
const ABOVE_FP: u64 = 2;

impl CodeView {
    /// The rows of each heap. Addresses without code have a row that says so: code can come into being there at any time.
    #[must_use]
    pub fn rows(&self) -> Vec<GeneratedRows> {
        let heaps = self.heaps.iter().filter_map(|heap| {
            let first = self.blobs.partition_point(|blob| blob.code.start < heap.start);
            let last = self.blobs.partition_point(|blob| blob.code.start < heap.end);
            let mut rows = vec![Row::plain(0, RowKind::Unlisted)];
            for blob in self.blobs.get(first..last)? {
                let begin = u32::try_from(blob.code.start - heap.start).ok()?;
                let end = u32::try_from(blob.code.end - heap.start).ok()?;
                rows.pop_if(|last| last.address() == begin);
                rows.push(row(begin, blob));
                rows.push(Row::plain(end, RowKind::Unlisted));
            }
            GeneratedRows::new(heap.clone(), rows)
        });
        heaps.collect()
    }
}

/// Compiled code calls with the stack pointer at the bottom of its frame, whose size is fixed. The others but for the
/// interpreter keep a frame pointer unless they say how large their frame is.
fn row(address: u32, blob: &Blob) -> Row {
    let by_frame_pointer = Row::new(address, RowKind::Fp, ABOVE_FP, SavedFp::AtFp, 0);
    let by_size = Row::new(address, RowKind::Sp, u64::from(blob.frame_words), SavedFp::AtCfa, SAVED_FP);
    let row = match blob.kind {
        BlobKind::Interpreter => return Row::plain(address, RowKind::Interpreter),
        // Frames are missing there: no stack is complete.
        BlobKind::Continuation => return Row::plain(address, RowKind::FramePointer),
        BlobKind::Native => by_frame_pointer,
        BlobKind::Stub if blob.frame_words == 0 => by_frame_pointer,
        BlobKind::Compiled | BlobKind::Stub => by_size,
    };
    row.unwrap_or(Row::plain(address, RowKind::Unsupported))
}
