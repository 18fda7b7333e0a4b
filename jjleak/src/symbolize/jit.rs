//! Names of code that a compiler other than HotSpot's, or one that jjleak cannot look into, has generated.

use std::sync::Arc;

use jjleak_common::stack::{InterpretedFrame, StackFrame};

use super::{Frame, FrameKind};
use crate::perf_map::PerfMap;

/// Names code by a process's perf map.
pub struct JitNames<'a> {
    map: &'a PerfMap,
    /// Whether the process is a JVM.
    is_jvm: bool,
}

impl<'a> JitNames<'a> {
    /// Names by what has been read of the map.
    #[must_use]
    pub const fn new(map: &'a PerfMap, is_jvm: bool) -> Self {
        Self { map, is_jvm }
    }

    /// The frame of a return address; `None` when the map does not know the code of the call in front of it.
    #[must_use]
    pub fn frames(&self, frame: StackFrame) -> Option<Arc<[Frame]>> {
        if InterpretedFrame::unpack(frame).is_some() {
            return None;
        }
        let address = frame.address();
        let symbol = self.map.find(address.checked_sub(1)?)?.to_string();
        let kind = if self.is_jvm { kind_in_jvm(&symbol) } else { FrameKind::Native };
        Some(Arc::from([Frame { address, symbol, kind, ..Frame::default() }]))
    }
}

/// Whether a name in a JVM's map is a method's. HotSpot writes `void java.util.Timer.run()`, `OpenJ9`
/// `java/util/Timer.run()V_warm`, perf-map-agent `Ljava/util/Timer;::run`; all else is code that the JVM has made for
/// itself, such as `StubRoutines (1)` and `I2C/C2I adapters`.
fn kind_in_jvm(name: &str) -> FrameKind {
    let has_parameters = name.split_once('(').is_some_and(|(method, _)| method.contains('.'));
    if has_parameters || name.contains("::") { FrameKind::Java } else { FrameKind::JvmGenerated }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jvms_methods_are_told_from_its_stubs_in_each_style() {
        for name in [
            "int java.lang.Byte.toUnsignedInt(byte)",
            "void java.lang.Object.<init>()",
            "java/lang/String.hashCode()I_warm",
            "Ljava/lang/String;::hashCode",
        ] {
            assert_eq!(kind_in_jvm(name), FrameKind::Java, "{name}");
        }
        for name in
            ["StubRoutines (1)", "I2C/C2I adapters", "Interpreter", "vtable stub", "C1 Runtime rethrow"]
        {
            assert_eq!(kind_in_jvm(name), FrameKind::JvmGenerated, "{name}");
        }
    }
}
