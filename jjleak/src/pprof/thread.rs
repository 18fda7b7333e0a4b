//! Threads of samples, stored as labels, by which the Go tool and others group and filter.

use super::error::Error;
use super::proto::{Label, Sample};
use super::tables::Tables;
use crate::profile::{Frame, FrameKind, Frames, SharedFrame, Thread};

/// Label key of the thread's name, and other tools' variants.
pub(super) const NAME: &str = "thread";
const NAMES: [&str; 3] = [NAME, "thread_name", "thread name"];

/// Label key of the thread's ID, and other tools' variants.
pub(super) const NUMBER: &str = "thread_id";
const NUMBERS: [&str; 3] = [NUMBER, "thread id", "tid"];

/// Index of the thread's frame counted from the root; `None` without a thread.
pub(super) fn place(frames: &Frames) -> Option<usize> {
    let threads = frames.iter().enumerate().filter(|(_, frame)| frame.kind == FrameKind::Thread);
    threads.last().map(|(from_leaf, _)| frames.len() - 1 - from_leaf)
}

/// The labels of a thread; `string` interns a string.
pub(super) fn labels(thread: &Thread, mut string: impl FnMut(&str) -> i64) -> Vec<Label> {
    let name = Label { key: string(NAME), str: string(&thread.name), num: 0 };
    vec![name, Label { key: string(NUMBER), str: 0, num: thread.number.into() }]
}

/// Adds the thread of a sample's labels to its frames.
pub(super) fn add(sample: &Sample, frames: &mut Vec<SharedFrame>, tables: &Tables<'_>) -> Result<(), Error> {
    let (mut name, mut number) = (None, None);
    for label in &sample.label {
        let key = tables.string(label.key)?;
        if NAMES.contains(&key) {
            name = Some(tables.string(label.str)?);
        } else if NUMBERS.contains(&key) {
            number = match tables.string(label.str)? {
                "" => u32::try_from(label.num).ok(),
                text => text.parse().ok(),
            };
        }
    }
    if name.is_none() && number.is_none() {
        return Ok(());
    }
    let detail = sample.detail.as_ref().and_then(|detail| detail.thread);
    let below = detail.map_or(0, |detail| detail.below as usize);
    let thread = Thread {
        number: number.unwrap_or_default(),
        name: name.unwrap_or_default().to_owned(),
        nth: detail.map_or(1, |detail| detail.nth),
    };
    frames.insert(frames.len() - below.min(frames.len()), Frame::of_thread(&thread).into());
    Ok(())
}
