//! Names of native code, by blazesym: ELF symbols, DWARF lines and inlined functions, separate debug files.

use std::collections::HashMap;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolized, Symbolizer};
use jjleak_common::stack::{InterpretedFrame, StackFrame};

use super::demangle::demangled;
use super::{Frame, FrameKind, GeneratedFrames, signal};
use crate::collect::RawStack;
use crate::jvm;
use crate::processes::{FileVersion, Located, Module, ModuleTable};
use crate::unwind::GoNames;

/// Looks up native frames; remembers each code location.
pub(super) struct NativeSymbols {
    symbolizer: Symbolizer,
    /// Frames by file and offset, without their address.
    known: HashMap<Place, Vec<Frame>>,
    /// Go's functions of files without symbols; `None` for files without Go.
    go: HashMap<FileVersion, Option<GoNames>>,
}

/// A location in code: a file, and an offset in it.
type Place = (FileVersion, u64);

impl Default for NativeSymbols {
    fn default() -> Self {
        // blazesym gives every name to its demanglers, which take names of C for fragments of mangled ones.
        let symbolizer = Symbolizer::builder().enable_demangling(false).build();
        Self { symbolizer, known: HashMap::new(), go: HashMap::new() }
    }
}

impl NativeSymbols {
    /// Says which function the code at an offset of a file is in. Probed functions are known better from where the
    /// probe was put than from debug information, which has internal names for them.
    pub(super) fn set_function(&mut self, module: &Module, offset: u64, name: &str) {
        let frame = Frame { symbol: name.to_owned(), ..frame_in(module) };
        self.known.insert((module.version, offset), vec![frame]);
    }

    /// Frames of a stack. The first address is an instruction that was executing, as is the one that a signal interrupted; the
    /// others follow a call, so that the call is found one byte before.
    pub(super) fn frames(
        &mut self,
        stack: &RawStack,
        modules: &ModuleTable,
        generated: &GeneratedFrames,
    ) -> Vec<Frame> {
        let mut frames = Vec::with_capacity(stack.frames.len());
        let mut is_interrupted = true;
        for frame in &stack.frames {
            let (address, by_frame_pointer) = (frame.address(), frame.is_by_frame_pointer());
            let looked_up = address.saturating_sub(u64::from(!is_interrupted));
            // Code that a process has generated can be in a file, of memory.
            let found = modules
                .find_frame(looked_up, frame.layer(), &stack.found)
                .filter(|_| !generated.contains_key(&frame.however_found()));
            if let Some(place) = found {
                let located = self.locate(modules.get(place.module), place, is_interrupted);
                is_interrupted = located.iter().any(|frame| frame.kind == FrameKind::Signal);
                frames.extend(located.iter().map(|frame| Frame {
                    address,
                    by_frame_pointer,
                    ..frame.clone()
                }));
            } else {
                is_interrupted = false;
                frames.extend(generated_frames(*frame, generated));
            }
        }
        frames
    }

    /// The function at a place of a file, preceded by those inlined into it, innermost first. The place is of the
    /// instruction that was executing, or of the last byte of a call.
    fn locate(&mut self, module: &Module, place: Located, is_executing: bool) -> &[Frame] {
        let (symbolizer, go) = (&self.symbolizer, &mut self.go);
        self.known.entry((module.version, place.offset)).or_insert_with(|| {
            let base = frame_in(module);
            if !is_executing && signal::is_return(module, place.offset + 1) {
                return vec![Frame { symbol: signal::NAME.to_owned(), kind: FrameKind::Signal, ..base }];
            }
            let Some(address) = place.address else { return vec![base] };
            match lookup(symbolizer, module, address) {
                Some(symbol) => frames_of(&symbol, &base),
                None => vec![Frame { symbol: go_name(go, module, address), ..base }],
            }
        })
    }
}

/// Frames of code that is in no file.
fn generated_frames(frame: StackFrame, generated: &GeneratedFrames) -> Vec<Frame> {
    let by_frame_pointer = frame.is_by_frame_pointer();
    let unknown = || vec![Frame { address: without_mark(frame), ..Frame::default() }];
    let mut frames = generated.get(&frame.however_found()).map_or_else(unknown, |named| named.to_vec());
    for frame in &mut frames {
        frame.by_frame_pointer = by_frame_pointer;
    }
    frames
}

/// An address, or the method's of an interpreted frame.
fn without_mark(frame: StackFrame) -> u64 {
    InterpretedFrame::unpack(frame).map_or(frame.address(), |frame| frame.method)
}

/// A frame of which only the file is known.
fn frame_in(module: &Module) -> Frame {
    Frame {
        module: module.path.to_string_lossy().into_owned(),
        build_id: module.build_id().to_owned(),
        kind: if jvm::is_library(module) { FrameKind::Jvm } else { FrameKind::Native },
        ..Frame::default()
    }
}

/// The function of Go at an address; empty when it is not known.
fn go_name(known: &mut HashMap<FileVersion, Option<GoNames>>, module: &Module, address: u64) -> String {
    let names = known.entry(module.version).or_insert_with(|| GoNames::read(&module.parts().ok()?));
    let name = names.as_ref().and_then(|names| names.at(address));
    name.unwrap_or_default().to_owned()
}

/// The symbol at an address. By an offset, blazesym would ask the program headers of the separate debug file, if there is one, which
/// have other offsets.
fn lookup<'a>(symbolizer: &'a Symbolizer, module: &Module, address: u64) -> Option<Sym<'a>> {
    let source = Source::Elf(Elf::new(module.stable_path()));
    match symbolizer.symbolize_single(&source, Input::VirtOffset(address)) {
        Ok(Symbolized::Sym(symbol)) => Some(symbol),
        Ok(Symbolized::Unknown(_)) => None,
        Err(error) => {
            tracing::debug!(module = %module.path.display(), %error, "cannot look up a symbol");
            None
        }
    }
}

fn frames_of(symbol: &Sym<'_>, base: &Frame) -> Vec<Frame> {
    let frame = |name: &str, code: Option<&CodeInfo<'_>>, inlined| Frame {
        symbol: demangled(name).into_owned(),
        file: code.map(|code| code.to_path().to_string_lossy().into_owned()).unwrap_or_default(),
        line: code.and_then(|code| code.line).unwrap_or_default(),
        inlined,
        ..base.clone()
    };
    // blazesym lists inlined functions from the outermost to the innermost.
    let inlined =
        symbol.inlined.iter().rev().map(|function| frame(&function.name, function.code_info.as_ref(), true));
    inlined.chain([frame(&symbol.name, symbol.code_info.as_deref(), false)]).collect()
}
