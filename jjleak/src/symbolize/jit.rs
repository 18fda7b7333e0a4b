//! Names of generated code that is not HotSpot's, or is in a JVM that jjleak cannot read.

use std::sync::Arc;

use jjleak_common::stack::{InterpretedFrame, StackFrame};

use crate::perf_map::PerfMap;
use crate::snapshot::{Frame, FrameKind, SharedFrame};

/// Names code by the process's perf map.
pub struct JitNames<'a> {
    map: &'a PerfMap,
    /// True if the process is a JVM.
    is_jvm: bool,
}

impl<'a> JitNames<'a> {
    /// Names code by the entries read from the map.
    #[must_use]
    pub const fn new(map: &'a PerfMap, is_jvm: bool) -> Self {
        Self { map, is_jvm }
    }

    /// Frames of a return address; `None` if the map has no entry for the preceding call.
    #[must_use]
    pub fn frames(&self, frame: StackFrame) -> Option<Arc<[SharedFrame]>> {
        if InterpretedFrame::unpack(frame).is_some() {
            return None;
        }
        let address = frame.address();
        let symbol = self.map.find(address.checked_sub(1)?)?;
        Some(generated(address, symbol, self.is_jvm).into())
    }
}

/// Frames of generated code with this name in a perf map, the innermost first. perf-map-agent names inlined methods after the one that
/// they are inlined into: `outer->inner->innermost`.
#[must_use]
pub fn generated(address: u64, name: &str, is_jvm: bool) -> Vec<SharedFrame> {
    let kind_of = |symbol: &str| if is_jvm { kind_in_jvm(symbol) } else { FrameKind::Native };
    let parts = if is_jvm { name.split("->").collect() } else { vec![name] };
    let frame = |(depth, symbol): (usize, &str)| {
        let kind = match kind_of(symbol) {
            FrameKind::Java if depth > 0 => FrameKind::JavaInlined,
            kind => kind,
        };
        SharedFrame::new(Frame {
            address,
            symbol: symbol.to_owned(),
            kind,
            inlined: depth > 0,
            ..Frame::default()
        })
    };
    parts.into_iter().enumerate().map(frame).rev().collect()
}

/// Kind of code, by its name in a JVM's map. Methods are `void java.util.Timer.run()` in HotSpot, `java/util/Timer.run()V_warm`
/// in `OpenJ9`, and `Ljava/util/Timer;::run` with perf-map-agent. All other names are code that the JVM generated for itself,
/// such as `StubRoutines (1)` and `I2C/C2I adapters`.
fn kind_in_jvm(name: &str) -> FrameKind {
    let has_parameters = name.split_once('(').is_some_and(|(method, _)| method.contains('.'));
    if has_parameters || name.contains("::") { FrameKind::Java } else { FrameKind::JvmGenerated }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inlined_methods_are_frames_of_their_own_the_innermost_first() {
        let frames = generated(0x10, "Lcom/a;::outer->Lcom/b;::middle->Lcom/c;::inner", true);
        let shown: Vec<_> =
            frames.iter().map(|frame| (frame.symbol.as_str(), frame.kind, frame.inlined)).collect();
        let inlined = FrameKind::JavaInlined;
        let expected = [
            ("Lcom/c;::inner", inlined, true),
            ("Lcom/b;::middle", inlined, true),
            ("Lcom/a;::outer", FrameKind::Java, false),
        ];
        assert_eq!(shown, expected);
        assert_eq!(generated(0x10, "operator->", false).len(), 1, "a name of C++");
    }

    #[test]
    fn a_jvms_methods_are_distinguished_from_its_stubs_in_each_style() {
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
