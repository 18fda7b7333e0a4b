//! Innermost frames of jjleak's sampler, between the allocator's function and the probe: they are the same in all stacks of a program.

use crate::snapshot::SharedFrame;

/// Beginning of the library's file name.
const LIBRARY: &str = "libjjleak_preload";

/// Removes them, so that a stack begins with the allocator's function: `malloc` of the library; elsewhere, the outermost of these frames,
/// because the allocator's can be inlined.
pub(super) fn remove(frames: &mut Vec<SharedFrame>) {
    let innermost = frames.iter().take_while(|frame| frame.is_of_sampler()).count();
    let is_of_library =
        |frame: &SharedFrame| frame.module.rsplit('/').next().is_some_and(|file| file.starts_with(LIBRARY));
    let removed = if frames.get(innermost).is_some_and(is_of_library) {
        innermost
    } else {
        innermost.saturating_sub(1)
    };
    frames.drain(..removed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Frame;

    fn remaining(symbols: &[&str], module: &str) -> Vec<String> {
        let frame = |symbol: &&str| Frame {
            symbol: (*symbol).to_owned(),
            module: module.to_owned(),
            ..Frame::default()
        };
        let mut frames: Vec<_> = symbols.iter().map(frame).map(SharedFrame::new).collect();
        remove(&mut frames);
        frames.iter().map(|frame| frame.symbol.clone()).collect()
    }

    #[test]
    fn a_stack_begins_with_the_allocators_function() {
        let stack = ["jjleak_sampler::probes::announce", "jjleak_preload::allocated", "malloc", "f"];
        assert_eq!(remaining(&stack, "/usr/lib/jjleak/libjjleak_preload.so"), ["malloc", "f"]);
        let alloc = "<jjleak_sampler::Sampler<A> as core::alloc::GlobalAlloc>::alloc";
        assert_eq!(
            remaining(&["jjleak_sampler::probes::announce", alloc, "f"], "/bin/service"),
            [alloc, "f"]
        );
        let inlined = |symbol: &str, file: &str| {
            SharedFrame::new(Frame { symbol: symbol.to_owned(), file: file.to_owned(), ..Frame::default() })
        };
        let mut frames = vec![
            inlined("jjleak_sampler::probes::announce", ""),
            inlined("allocated", "/registry/src/index/jjleak-sampler-0.1.0/src/hooks.rs"),
            inlined("alloc<std::alloc::System>", "/service/jjleak-sampler/src/lib.rs"),
            inlined("f", "/service/src/main.rs"),
        ];
        remove(&mut frames);
        assert_eq!(frames.len(), 2);
        assert_eq!(remaining(&["malloc", "jjleak_sampler::f"], "/bin/service").len(), 2);
        assert!(remaining(&[], "").is_empty());
    }
}
