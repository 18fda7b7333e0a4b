//! Names of Java methods and of other code that a JVM generates.

use std::sync::Arc;

use jjleak_common::jvm::{CodeHeap, id_in_frame};
use jjleak_common::stack::{InterpretedFrame, StackFrame};
use jjleak_common::unwind::layer;

use crate::fast_map::{FastMap, fast_map};
use crate::jvm::{Blob, JavaFrame, Jvm, KnownMethods, Memory, Methods};
use crate::snapshot::{Frame, FrameKind, SharedFrame};

/// Maximum number of cached code locations, for a process that compiles and discards code endlessly.
const MAX_PLACES: usize = 1 << 17;

/// Cache of names in a JVM's code.
#[derive(Debug, Default)]
pub struct KnownJava {
    methods: KnownMethods,
    /// Frames by code location, with the compiled code that they belong to.
    places: FastMap<StackFrame, (Blob, Arc<[SharedFrame]>)>,
    /// Number of frames without names.
    pub unnamed: u64,
}

/// Names code of a JVM by the current content of its memory.
pub struct JavaNames<'a, M> {
    heaps: &'a [CodeHeap],
    methods: Methods<'a, M>,
    places: &'a mut FastMap<StackFrame, (Blob, Arc<[SharedFrame]>)>,
    unnamed: &'a mut u64,
    /// Results since the creation of this value.
    recent: FastMap<StackFrame, Option<Arc<[SharedFrame]>>>,
}

impl<'a, M: Memory> JavaNames<'a, M> {
    /// Names code in these code heaps.
    pub fn new(jvm: &'a Jvm<M>, heaps: &'a [CodeHeap], known: &'a mut KnownJava) -> Self {
        let KnownJava { methods, places, unnamed } = known;
        Self { heaps, methods: jvm.methods(methods), places, unnamed, recent: fast_map(0) }
    }

    /// Frames of a word of a stack, innermost first; `None` if it is not in code of the JVM, or that code has been discarded.
    pub fn frames(&mut self, frame: StackFrame) -> Option<Arc<[SharedFrame]>> {
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

    fn interpreted(&mut self, frame: InterpretedFrame) -> Option<Arc<[SharedFrame]>> {
        let InterpretedFrame { method, bytecode_low } = frame;
        let frame = self.methods.interpreted(method, bytecode_low)?;
        Some(Arc::from([named(frame, method, false)]))
    }

    /// Frames of the current code at the address, if its compilation is still the one of the stack; otherwise the cached frames.
    fn generated(&mut self, frame: StackFrame) -> Option<Arc<[SharedFrame]>> {
        let id = frame.layer() - layer::GENERATED;
        let now = self.methods.find(self.heaps, frame.address());
        let now = now.filter(|blob| id_in_frame(blob.compile_id()) == id);
        let known = self.places.get(&frame);
        let same = known.filter(|(blob, _)| now.as_ref().is_none_or(|now| now == blob));
        if let Some((_, frames)) = same {
            return Some(Arc::clone(frames));
        }
        let blob = now?;
        let frames: Arc<[SharedFrame]> = self.look_up(&blob, frame.address())?.into();
        if self.places.len() == MAX_PLACES {
            self.places.clear();
        }
        self.places.insert(frame, (blob, Arc::clone(&frames)));
        Some(frames)
    }

    fn look_up(&mut self, blob: &Blob, address: u64) -> Option<Vec<SharedFrame>> {
        if !blob.is_method() {
            let kind = FrameKind::JvmGenerated;
            return Some(vec![Frame { address, symbol: blob.name.clone(), kind, ..Frame::default() }.into()]);
        }
        let methods = self.methods.compiled(blob, address);
        let outermost = methods.len().checked_sub(1)?;
        let methods = methods.into_iter().enumerate();
        Some(methods.map(|(index, frame)| named(frame, address, index < outermost)).collect())
    }
}

fn named(JavaFrame { name, file, line }: JavaFrame, address: u64, inlined: bool) -> SharedFrame {
    let kind = if inlined { FrameKind::JavaInlined } else { FrameKind::Java };
    Frame { address, symbol: name, file, line, kind, inlined, ..Frame::default() }.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jvm::tests::image::{CODE, HEAP, STEP, image, open};

    /// Compile ID in the fake memory, and its address.
    const COMPILE_ID: u32 = 77;
    const COMPILE_ID_AT: u64 = HEAP + STEP + 16 + 40;

    /// Names of a frame of this compilation when the code at its address is of another one.
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
