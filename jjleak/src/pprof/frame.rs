//! Kind and origin of a frame, which pprof has no field for, packed into a number.

use crate::profile::{Frame, FrameKind};

const KIND: u32 = 0xf;
const INLINED: u32 = 1 << 4;
const BY_FRAME_POINTER: u32 = 1 << 5;
const TAIL_CALL: u32 = 1 << 6;

/// Numbers of kinds in files. They never change, so that old files stay readable.
const NUMBERS: [(FrameKind, u32); 11] = [
    (FrameKind::Unknown, 0),
    (FrameKind::Native, 1),
    (FrameKind::Java, 2),
    (FrameKind::JavaInlined, 3),
    (FrameKind::Jvm, 4),
    (FrameKind::JvmGenerated, 5),
    (FrameKind::Kernel, 6),
    (FrameKind::Thread, 7),
    (FrameKind::Signal, 8),
    (FrameKind::Memory, 9),
    (FrameKind::Class, 10),
];

/// Returns whether two consecutive frames are lines of one location: functions inlined at one address.
pub(super) fn share_a_location(frame: &Frame, next: &Frame) -> bool {
    frame.inlined
        && frame.address == next.address
        && frame.module == next.module
        && frame.build_id == next.build_id
        && has_line(frame)
        && has_line(next)
}

/// Returns whether the frame has more than its address.
pub(super) fn has_line(frame: &Frame) -> bool {
    !frame.symbol.is_empty() || !frame.file.is_empty() || frame.line != 0
}

pub(super) fn pack(frame: &Frame) -> u32 {
    let number = NUMBERS.iter().find(|(kind, _)| *kind == frame.kind).map_or(0, |(_, number)| *number);
    let flag = |is_set, flag| if is_set { flag } else { 0 };
    number
        | flag(frame.inlined, INLINED)
        | flag(frame.by_frame_pointer, BY_FRAME_POINTER)
        | flag(frame.tail_call, TAIL_CALL)
}

/// Unpacks the number into the frame.
pub(super) fn unpack(number: u32, frame: &mut Frame) {
    let kind = NUMBERS.iter().find(|(_, known)| *known == number & KIND);
    frame.kind = kind.map_or(FrameKind::Unknown, |(kind, _)| *kind);
    frame.inlined = number & INLINED != 0;
    frame.by_frame_pointer = number & BY_FRAME_POINTER != 0;
    frame.tail_call = number & TAIL_CALL != 0;
}

/// Guesses the kind of another tool's frame.
pub(super) fn guess(frame: &Frame) -> FrameKind {
    let file_name = frame.module.rsplit('/').next().unwrap_or_default();
    if frame.symbol.is_empty() {
        FrameKind::Unknown
    } else if frame.module.starts_with("[kernel") || file_name == "vmlinux" {
        FrameKind::Kernel
    } else if file_name == "libjvm.so" {
        FrameKind::Jvm
    } else if [".java", ".kt", ".scala"].iter().any(|suffix| frame.file.ends_with(suffix)) {
        FrameKind::Java
    } else {
        FrameKind::Native
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_number_of_its_own_that_reads_back() {
        for kind in FrameKind::ALL {
            let frame = Frame { kind, inlined: true, tail_call: true, ..Frame::default() };
            let mut read = Frame { by_frame_pointer: true, ..Frame::default() };
            unpack(pack(&frame), &mut read);
            assert_eq!(read, frame);
        }
    }

    #[test]
    fn kinds_of_other_tools_frames_are_guessed_by_name_and_file() {
        let kind = |symbol: &str, module: &str, file: &str| {
            guess(&Frame {
                symbol: symbol.into(),
                module: module.into(),
                file: file.into(),
                ..Frame::default()
            })
        };
        assert_eq!(kind("", "/usr/bin/x", ""), FrameKind::Unknown);
        assert_eq!(kind("main.run", "/usr/bin/x", "main.go"), FrameKind::Native);
        assert_eq!(kind("os::malloc", "/opt/jdk/lib/server/libjvm.so", ""), FrameKind::Jvm);
        assert_eq!(kind("Main.run", "", "Main.java"), FrameKind::Java);
        assert_eq!(kind("do_mmap", "[kernel.kallsyms]", ""), FrameKind::Kernel);
    }
}
