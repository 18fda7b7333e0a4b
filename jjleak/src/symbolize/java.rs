//! Names of Java methods, and of what a JVM generates besides.

use std::collections::HashMap;
use std::sync::Arc;

use jjleak_common::stack::{InterpretedFrame, StackFrame};

use super::{Frame, FrameKind};
use crate::jvm::{CodeView, JavaFrame, Jvm, Memory, Methods};

/// Names the code of a JVM, from its memory as it is now.
pub struct JavaNames<'a, M> {
    code: &'a CodeView,
    methods: Methods<'a, M>,
    known: HashMap<StackFrame, Option<Arc<[Frame]>>>,
}

impl<'a, M: Memory> JavaNames<'a, M> {
    /// Names by this view of the code.
    pub fn new(jvm: &'a Jvm<M>, code: &'a CodeView) -> Self {
        Self { code, methods: jvm.methods(), known: HashMap::new() }
    }

    /// The frames of a word of a stack, innermost first; `None` when it is not one of the JVM's code.
    pub fn frames(&mut self, frame: StackFrame) -> Option<Arc<[Frame]>> {
        if let Some(known) = self.known.get(&frame) {
            return known.clone();
        }
        let frames = self.look_up(frame).map(Arc::from);
        self.known.insert(frame, frames.clone());
        frames
    }

    fn look_up(&mut self, frame: StackFrame) -> Option<Vec<Frame>> {
        if let Some(InterpretedFrame { method, bytecode_low }) = InterpretedFrame::unpack(frame) {
            let frame = self.methods.interpreted(method, bytecode_low)?;
            return Some(vec![named(frame, method, false)]);
        }
        let word = frame.address();
        let blob = self.code.find(word)?;
        let methods = self.methods.compiled(blob, word);
        let Some(outermost) = methods.len().checked_sub(1) else {
            let symbol = blob.name.to_string();
            let kind = FrameKind::JvmGenerated;
            return Some(vec![Frame { address: word, symbol, kind, ..Frame::default() }]);
        };
        let methods = methods.into_iter().enumerate();
        Some(methods.map(|(index, frame)| named(frame, word, index < outermost)).collect())
    }
}

fn named(JavaFrame { name, file, line }: JavaFrame, address: u64, inlined: bool) -> Frame {
    let kind = if inlined { FrameKind::JavaInlined } else { FrameKind::Java };
    Frame { address, symbol: name, file, line, kind, inlined, ..Frame::default() }
}
