//! Stacks without the frames that say nothing about the program: those below `main` and the start of a thread.

use super::label::{module, printable};
use super::verdicts::short_name;
use crate::profile::{Frame, FrameKind, SharedFrame};

/// Beginnings of functions that run a thread for the program.
const THREAD_STARTS: [&str; 9] = [
    "start_thread",
    "thread_native_entry",
    "clone3",
    "__clone",
    "java.lang.Thread.run",
    "java.lang.VirtualThread.run",
    "std::sys::",
    "std::thread::",
    "std::rt::",
];

/// Number of frames down to `main` or the first function of a thread; all if there is neither.
pub(super) fn above_main(frames: &[SharedFrame]) -> usize {
    let starts = |frame: &SharedFrame| THREAD_STARTS.iter().any(|name| frame.symbol.starts_with(name));
    let main = frames.iter().position(|frame| is_main(frame)).map(|index| index + 1);
    // A program may create a thread: the functions of its own that a thread's start calls are nearer to the allocation.
    let start = frames.iter().position(starts).filter(|index| *index > 1);
    main.or(start).unwrap_or(frames.len())
}

fn is_main(frame: &Frame) -> bool {
    match frame.kind {
        FrameKind::Java | FrameKind::JavaInlined => frame.symbol.rsplit('.').next() == Some("main"),
        _ => frame.symbol == "main" && !frame.file.is_empty() || frame.symbol.ends_with("::main"),
    }
}

/// Indices of at most `most` frames: the allocation function, the call from the application, the application's frame and its
/// callers. `None` is a gap.
pub(super) fn folded(frames: &[SharedFrame], application: usize, most: usize) -> Vec<Option<usize>> {
    let mut lines = folded_code(frames, application, most);
    // The thread is no code: what runs in it is the question.
    let thread = frames.len().checked_sub(1).filter(|last| frames[*last].kind == FrameKind::Thread);
    if thread.is_some() && !lines.contains(&thread) {
        lines.push(thread);
    }
    lines
}

fn folded_code(frames: &[SharedFrame], application: usize, most: usize) -> Vec<Option<usize>> {
    let above = above_main(frames).max(application + 1).min(frames.len());
    if above <= most {
        return (0..above).map(Some).collect();
    }
    let mut lines = Vec::new();
    let begin = application.saturating_sub(1);
    if begin > 0 {
        lines.push(Some(0));
    }
    if begin > 1 {
        lines.push(None);
    }
    lines.extend((begin..above).map(Some));
    if lines.len() > most {
        lines.truncate(most.saturating_sub(1));
        lines.push(None);
    }
    lines
}

/// A frame in a line of moderate length.
pub(super) fn line_of(frame: &Frame) -> String {
    let mut line = short_name(frame);
    if !frame.symbol.is_empty()
        && let Some(module) = module(frame)
    {
        line = format!("{line} [{module}]");
    }
    if let Some(place) = place_of(frame) {
        line = format!("{line} {place}");
    }
    line
}

/// `demo.c:73`: the source file without its folders.
pub(super) fn place_of(frame: &Frame) -> Option<String> {
    let file = printable(frame.file.rsplit('/').next().unwrap_or_default()).into_owned();
    match (file.is_empty(), frame.line) {
        (true, _) => None,
        (false, 0) => Some(file),
        (false, line) => Some(format!("{file}:{line}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(names: &[&str]) -> Vec<SharedFrame> {
        let frame = |name: &&str| Frame {
            symbol: (*name).to_owned(),
            file: "a.c".to_owned(),
            kind: FrameKind::Native,
            ..Frame::default()
        };
        names.iter().map(frame).map(Into::into).collect()
    }

    fn shown(names: &[&str], application: usize, most: usize) -> Vec<String> {
        let frames = frames(names);
        let name =
            |index: Option<usize>| index.map_or("...".to_owned(), |index| frames[index].symbol.clone());
        folded(&frames, application, most).into_iter().map(name).collect()
    }

    #[test]
    fn frames_below_main_are_folded() {
        let names = ["malloc", "keep", "main", "__libc_start_call_main", "_start"];
        assert_eq!(shown(&names, 1, 9), ["malloc", "keep", "main"]);
    }

    #[test]
    fn frames_of_a_threads_start_are_folded() {
        let names = ["malloc", "keep", "work", "start_thread", "clone3"];
        assert_eq!(shown(&names, 1, 9), ["malloc", "keep", "work"]);
    }

    #[test]
    fn a_long_stack_keeps_the_allocation_function_and_what_is_near_the_application() {
        let names = ["malloc", "a", "b", "c", "d", "app", "serve", "loop", "run", "main", "_start"];
        assert_eq!(shown(&names, 5, 5), ["malloc", "...", "d", "app", "..."]);
        assert_eq!(shown(&names, 5, 8), ["malloc", "...", "d", "app", "serve", "loop", "run", "main"]);
    }
}
