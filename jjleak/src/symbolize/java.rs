//! Names of Java methods, and of what a JVM generates besides.

use jjleak_common::stack::InterpretedFrame;

use super::{Frame, FrameKind};
use crate::jvm::{CodeView, JavaFrame, Jvm, Memory, Methods};

/// What can be named of a JVM's code, from its memory as it is now.
pub struct JavaNames<'a, M> {
    code: &'a CodeView,
    methods: Methods<'a, M>,
}

impl<'a, M: Memory> JavaNames<'a, M> {
    /// Names by this view of the code.
    pub fn new(jvm: &'a Jvm<M>, code: &'a CodeView) -> Self {
        Self { code, methods: jvm.methods() }
    }
}

/// Who names what is in no file.
pub trait GeneratedNames {
    /// The frames of a word of a stack, innermost first; none when it is not known.
    fn frames(&mut self, word: u64) -> Vec<Frame>;
}

impl<M: Memory> GeneratedNames for JavaNames<'_, M> {
    fn frames(&mut self, word: u64) -> Vec<Frame> {
        if let Some(InterpretedFrame { method, bytecode_low }) = InterpretedFrame::unpack(word) {
            let frame = self.methods.interpreted(method, bytecode_low);
            return frame.map(|frame| named(frame, method, false)).into_iter().collect();
        }
        let Some(blob) = self.code.find(word) else { return Vec::new() };
        let methods = self.methods.compiled(blob, word);
        let Some(outermost) = methods.len().checked_sub(1) else {
            let symbol = blob.name.to_string();
            return vec![Frame { address: word, symbol, kind: FrameKind::JvmGenerated, ..Frame::default() }];
        };
        let methods = methods.into_iter().enumerate();
        methods.map(|(index, frame)| named(frame, word, index < outermost)).collect()
    }
}

fn named(JavaFrame { name, file, line }: JavaFrame, address: u64, inlined: bool) -> Frame {
    let kind = if inlined { FrameKind::JavaInlined } else { FrameKind::Java };
    Frame { address, symbol: name, file, line, kind, inlined, ..Frame::default() }
}
