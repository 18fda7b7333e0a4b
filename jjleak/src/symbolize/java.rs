//! Names of Java methods, and of what a JVM generates besides.

use std::collections::HashMap;
use std::sync::Arc;

use jjleak_common::jvm::{CodeHeap, id_in_frame};
use jjleak_common::stack::{InterpretedFrame, StackFrame};
use jjleak_common::unwind::layer;

use super::{Frame, FrameKind};
use crate::jvm::{Blob, JavaFrame, Jvm, KnownMethods, Memory, Methods};

/// Most places in code that are remembered, for a process that compiles and throws away without end.
const MAX_PLACES: usize = 1 << 17;

/// What has been named of a JVM's code.
#[derive(Debug, Default)]
pub struct KnownJava {
    methods: KnownMethods,
    /// What compiled code was named, and which code that was.
    places: HashMap<StackFrame, (Blob, Arc<[Frame]>)>,
    /// Frames that could not be named.
    pub unnamed: u64,
}

/// Names the code of a JVM, from its memory as it is now.
pub struct JavaNames<'a, M> {
    heaps: &'a [CodeHeap],
    methods: Methods<'a, M>,
    places: &'a mut HashMap<StackFrame, (Blob, Arc<[Frame]>)>,
    unnamed: &'a mut u64,
    /// What was asked for a moment ago.
    recent: HashMap<StackFrame, Option<Arc<[Frame]>>>,
}

impl<'a, M: Memory> JavaNames<'a, M> {
    /// Names what is in these heaps.
    pub fn new(jvm: &'a Jvm<M>, heaps: &'a [CodeHeap], known: &'a mut KnownJava) -> Self {
        let KnownJava { methods, places, unnamed } = known;
        Self { heaps, methods: jvm.methods(methods), places, unnamed, recent: HashMap::new() }
    }

    /// The frames of a word of a stack, innermost first; `None` when it is not one of the JVM's code, or that is gone.
    pub fn frames(&mut self, frame: StackFrame) -> Option<Arc<[Frame]>> {
        if let Some(recent) = self.recent.get(&frame) {
            return recent.clone();
        }
        let is_compiled = (layer::GENERATED..layer::INTERPRETED).contains(&frame.layer());
        let frames = match InterpretedFrame::unpack(frame) {
            Some(interpreted) => self.interpreted(interpreted),
            None if is_compiled => self.generated(frame),
            None => return None,
        };
        *self.unnamed += u64::from(frames.is_none());
        self.recent.insert(frame, frames.clone());
        frames
    }

    fn interpreted(&mut self, frame: InterpretedFrame) -> Option<Arc<[Frame]>> {
        let InterpretedFrame { method, bytecode_low } = frame;
        let frame = self.methods.interpreted(method, bytecode_low)?;
        Some(Arc::from([named(frame, method, false)]))
    }

    /// The code at the frame's address now, if it is of the same compilation as when the stack was taken; otherwise, what
    /// that was named before.
    fn generated(&mut self, frame: StackFrame) -> Option<Arc<[Frame]>> {
        let id = frame.layer() - layer::GENERATED;
        let now = self.methods.find(self.heaps, frame.address());
        let now = now.filter(|blob| id_in_frame(blob.compile_id()) == id);
        let known = self.places.get(&frame);
        let same = known.filter(|(blob, _)| now.as_ref().is_none_or(|now| now == blob));
        if let Some((_, frames)) = same {
            return Some(Arc::clone(frames));
        }
        let blob = now?;
        let frames: Arc<[Frame]> = self.look_up(&blob, frame.address())?.into();
        if self.places.len() == MAX_PLACES {
            self.places.clear();
        }
        self.places.insert(frame, (blob, Arc::clone(&frames)));
        Some(frames)
    }

    fn look_up(&mut self, blob: &Blob, address: u64) -> Option<Vec<Frame>> {
        if !blob.is_method() {
            let kind = FrameKind::JvmGenerated;
            return Some(vec![Frame { address, symbol: blob.name.clone(), kind, ..Frame::default() }]);
        }
        let methods = self.methods.compiled(blob, address);
        let outermost = methods.len().checked_sub(1)?;
        let methods = methods.into_iter().enumerate();
        Some(methods.map(|(index, frame)| named(frame, address, index < outermost)).collect())
    }
}

fn named(JavaFrame { name, file, line }: JavaFrame, address: u64, inlined: bool) -> Frame {
    let kind = if inlined { FrameKind::JavaInlined } else { FrameKind::Java };
    Frame { address, symbol: name, file, line, kind, inlined, ..Frame::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jvm::tests::image::{CODE, HEAP, STEP, image, open};

    /// The number of the compilation in the made-up memory, and where it is.
    const COMPILE_ID: u32 = 77;
    const COMPILE_ID_AT: u64 = HEAP + STEP + 16 + 40;

    /// What a frame of this compilation is called, when the code there is of another one.
    fn named(known: &mut KnownJava, id: u32, id_now: u32) -> Vec<String> {
        let mut image = image();
        image.int(COMPILE_ID_AT, id_now);
        let jvm = open(image);
        let heaps = jvm.heaps().unwrap();
        let frame = StackFrame::new(CODE + 0x20, layer::GENERATED | id_in_frame(id));
        let frames = JavaNames::new(&jvm, &heaps, known).frames(frame);
        frames.iter().flat_map(|frames| frames.iter()).map(|frame| frame.symbol.clone()).collect()
    }

    #[test]
    fn code_that_has_come_after_the_stack_was_taken_gives_it_no_names() {
        let mut known = KnownJava::default();
        assert_eq!(named(&mut known, COMPILE_ID, COMPILE_ID + 1), [""; 0]);
        assert_eq!(known.unnamed, 1);
    }

    #[test]
    fn code_that_has_been_named_keeps_its_names_when_other_code_has_come() {
        let mut known = KnownJava::default();
        for id_now in [COMPILE_ID, COMPILE_ID + 1] {
            assert_eq!(named(&mut known, COMPILE_ID, id_now), ["a.B.inner", "a.B.outer"]);
        }
        assert_eq!(known.unnamed, 0);
    }

    #[test]
    fn code_of_a_later_compilation_is_not_taken_for_what_was_named_before() {
        let mut known = KnownJava::default();
        named(&mut known, COMPILE_ID, COMPILE_ID);
        assert_eq!(named(&mut known, COMPILE_ID + 1, COMPILE_ID), [""; 0]);
        assert_eq!(known.unnamed, 1);
    }
}
