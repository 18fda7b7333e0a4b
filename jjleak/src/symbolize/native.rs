//! Frames of native code.

mod ahead;

use std::rc::Rc;
use std::sync::Arc;

use jjleak_common::stack::{InterpretedFrame, StackFrame};
use jjleak_common::unwind::{MAX_FOUND, layer};

use ahead::Ahead;
pub(super) use ahead::WithGenerated;

use super::child::Symbolizer;
use super::child::protocol::{self, Symbol};
use super::frame_set::FrameSet;
use super::tail_calls::{Call, TailCalls};
use super::{GeneratedFrames, signal};
use crate::fast_map::{FastMap, fast_map};
use crate::file_content::Content;
use crate::jvm;
use crate::processes::{FileVersion, Located, Module, ModuleId, ModuleTable};
use crate::snapshot::{Frame, FrameKind, RawStack, SharedFrame};
use crate::unwind::GoNames;

/// Looks up native frames and caches each code location.
pub(super) struct NativeSymbols {
    symbolizer: Symbolizer,
    known: FastMap<Place, Known>,
    /// Frames in stacks.
    shared: FastMap<InProcess, Rc<[SharedFrame]>>,
    /// Frames without names, for mapped code that is in no segment of its file.
    unlocated: FastMap<FileVersion, Known>,
    tail_calls: TailCalls,
    /// Addresses after the tail calls between a call and the function that runs, outermost first, in the call's file.
    jumps: FastMap<(Place, Place), Rc<[u64]>>,
    /// Go functions of files without symbols; `None` for files without Go.
    go: FastMap<FileVersion, Option<GoNames>>,
    ahead: Ahead,
}

/// A code location. What executes at an offset and the call that ends there are looked up in different ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Place {
    file: FileVersion,
    offset: u64,
    /// True for an executing instruction, false for the last byte of a call.
    is_executing: bool,
}

/// A code location in a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct InProcess {
    place: Place,
    /// Address in the file; `None` where code is mapped that is in no segment of its file.
    in_file: Option<u64>,
    /// Address in the process.
    address: u64,
    by_frame_pointer: bool,
}

/// A word of a stack.
struct Word {
    frames: Box<[SharedFrame]>,
    /// True if a signal handler returns here: the next word is the address of an executing instruction.
    is_signal: bool,
    /// The code of a file that runs or calls here.
    code: Option<Code>,
}

/// Code of a file in a stack.
#[derive(Clone, Copy)]
struct Code {
    module: ModuleId,
    place: Place,
    /// Address in the file; `None` as in [`Located`].
    in_file: Option<u64>,
    /// Address in the process.
    address: u64,
    /// Address of the function in the file.
    function: Option<u64>,
    /// The call that ends after the place.
    call: Option<Call>,
}

/// Words and frames that are the same in all stacks of one process while its modules stay the same.
#[derive(Default)]
pub(super) struct KnownWords {
    /// By the word, and whether it is the address of an executing instruction.
    words: FastMap<(StackFrame, bool), Rc<Word>>,
    /// Frames removed by tail calls, by the address that the function returns to, and the function that runs.
    restored: FastMap<(u64, Place), Rc<[SharedFrame]>>,
}

/// Symbols of a location.
#[derive(Default)]
struct Known {
    /// The function, preceded by functions inlined into it, innermost first; without addresses in the process.
    frames: Vec<Frame>,
    /// Address of the function in the file.
    function: Option<u64>,
    /// The call that ends after the location.
    call: Option<Call>,
}

impl NativeSymbols {
    pub(super) fn new(symbolizer: Symbolizer) -> Self {
        Self {
            symbolizer,
            known: FastMap::default(),
            shared: FastMap::default(),
            unlocated: fast_map(0),
            tail_calls: TailCalls::default(),
            jumps: fast_map(0),
            go: fast_map(0),
            ahead: Ahead::default(),
        }
    }

    /// Number of files of a process whose symbols could not be read.
    pub(super) fn lost_files(&self, modules: &ModuleTable) -> u64 {
        let lost = modules.iter().filter(|(_, module)| self.symbolizer.has_lost(module.version));
        lost.count() as u64
    }

    /// Sets the function name of the code at a file offset. The name of the probe is better for probed functions than debug
    /// information, which has internal names for them.
    pub(super) fn set_function(&mut self, module: &Module, offset: u64, name: &str) {
        let frame = Frame { symbol: name.to_owned(), ..frame_in(module) };
        // Stacks begin at the probed instruction.
        let place = Place { file: module.version, offset, is_executing: true };
        self.known.insert(place, Known { frames: vec![frame], ..Known::default() });
    }

    /// Frames of a stack, from `distinct`. The first address, and any interrupted by a signal, is an executing instruction; the others
    /// are return addresses, so the call is found one byte before. `known` has what other stacks of the process have in common.
    pub(super) fn frames(
        &mut self,
        stack: &RawStack,
        modules: &ModuleTable,
        generated: &GeneratedFrames,
        known: &mut KnownWords,
        distinct: &mut FrameSet,
    ) -> Vec<SharedFrame> {
        self.end_reading_ahead();
        let mut frames = Vec::with_capacity(stack.frames.len());
        let mut is_executing = true;
        let mut running = None;
        for frame in &stack.frames {
            let mut new =
                || Rc::new(self.word(*frame, is_executing, &stack.found, modules, generated, distinct));
            // Other words mean something else in another stack.
            let word = if generated.is_empty() && frame.layer() < layer::FOUND {
                Rc::clone(known.words.entry((*frame, is_executing)).or_insert_with(new))
            } else {
                new()
            };
            // After a frame pointer, other frames may be missing in between.
            if let (Some(calling), Some(running)) = (word.code, running)
                && !frame.is_by_frame_pointer()
                && let Some(restored) =
                    self.restored(modules, calling, running, &mut known.restored, distinct)
            {
                frames.extend_from_slice(&restored);
            }
            frames.extend_from_slice(&word.frames);
            is_executing = word.is_signal;
            running = word.code;
        }
        frames
    }

    /// A word of a stack.
    fn word(
        &mut self,
        frame: StackFrame,
        is_executing: bool,
        found: &[u64; MAX_FOUND],
        modules: &ModuleTable,
        generated: &GeneratedFrames,
        distinct: &mut FrameSet,
    ) -> Word {
        let (address, by_frame_pointer) = (frame.address(), frame.is_by_frame_pointer());
        let looked_up = address.saturating_sub(u64::from(!is_executing));
        // Generated code can be in a file, such as a memfd.
        let found = modules
            .find_frame(looked_up, frame.layer(), found)
            .filter(|_| !generated.contains_key(&frame.however_found()));
        let Some(Located { module: id, offset, address: in_file }) = found else {
            let frames = generated_frames(frame, generated, distinct).into();
            return Word { frames, is_signal: false, code: None };
        };
        let module = modules.get(id);
        let place = Place { file: module.version, offset, is_executing };
        let at = InProcess { place, in_file, address, by_frame_pointer };
        let frames: Box<[_]> = self.shared(module, at, distinct).into();
        let is_signal = frames.iter().any(|frame| frame.kind == FrameKind::Signal);
        let &Known { function, call, .. } = self.locate(module, place, in_file);
        let code = Code { module: id, place, in_file, address, function, call };
        Word { frames, is_signal, code: (!is_signal).then_some(code) }
    }

    /// Frames removed by tail calls between a call and the function that runs, innermost first.
    fn restored(
        &mut self,
        modules: &ModuleTable,
        calling: Code,
        running: Code,
        known: &mut FastMap<(u64, Place), Rc<[SharedFrame]>>,
        distinct: &mut FrameSet,
    ) -> Option<Rc<[SharedFrame]>> {
        let (call, running_at) = (calling.call?, running.in_file?);
        if running.place.file == calling.place.file && running.function == Some(call.function) {
            return None;
        }
        let (module, running_in) = (modules.get(calling.module), modules.get(running.module));
        let find = || {
            let symbolizer = &mut self.symbolizer;
            self.tail_calls.between(symbolizer, (module, call), (running_in, running_at)).into()
        };
        let jumps = self.jumps.entry((calling.place, running.place)).or_insert_with(find);
        if jumps.is_empty() {
            return None;
        }
        let jumps = Rc::clone(jumps);
        let frames = || self.jumped_from(module, (calling, call), &jumps, distinct);
        Some(Rc::clone(known.entry((calling.address, running.place)).or_insert_with(frames)))
    }

    /// Frames of functions that end with a tail call, innermost first, by the addresses after their jumps.
    fn jumped_from(
        &mut self,
        module: &Module,
        (calling, call): (Code, Call),
        jumps: &[u64],
        distinct: &mut FrameSet,
    ) -> Rc<[SharedFrame]> {
        let mut frames = Vec::new();
        for end in jumps.iter().rev() {
            // Like any return address, it is looked up one byte before.
            let at = end.saturating_sub(1);
            let Some(offset) = module.offset_of_code(at) else { continue };
            let located = self.locate(module, Place { offset, ..calling.place }, Some(at));
            let address = calling.address.wrapping_add(end.wrapping_sub(call.end));
            let in_process = |frame: &Frame| Frame { address, tail_call: true, ..frame.clone() };
            frames.extend(located.frames.iter().map(|frame| distinct.share(in_process(frame))));
        }
        frames.into()
    }

    /// Frames of a place in a file, at an address in the process.
    fn shared(&mut self, module: &Module, at: InProcess, distinct: &mut FrameSet) -> &[SharedFrame] {
        if !self.shared.contains_key(&at) {
            let InProcess { place, in_file, address, by_frame_pointer } = at;
            let known = &self.locate(module, place, in_file).frames;
            let in_process = |frame: &Frame| Frame { address, by_frame_pointer, ..frame.clone() };
            let shared = known.iter().map(|frame| distinct.share(in_process(frame))).collect();
            self.shared.insert(at, shared);
        }
        &self.shared[&at]
    }

    /// Forgets which frames stacks have. Symbols are kept.
    pub(super) fn forget_stacks(&mut self) {
        self.shared.clear();
    }

    /// Symbols of a place in a file, and its address in the file.
    fn locate(&mut self, module: &Module, place: Place, address: Option<u64>) -> &Known {
        let is_signal = || place.is_signal(module);
        // The same offset can have an address where it is mapped elsewhere.
        if address.is_none() && !self.known.contains_key(&place) && !is_signal() {
            let unnamed = || Known { frames: vec![frame_in(module)], ..Known::default() };
            return self.unlocated.entry(module.version).or_insert_with(unnamed);
        }
        if !self.known.contains_key(&place) {
            let known = match address.filter(|_| !is_signal()) {
                None => Known::signal(module),
                Some(address) => {
                    let symbols = self.symbolizer.symbols(module, &[place.at(address)]);
                    self.known_of(module, place, address, symbols.into_iter().flatten().next())
                }
            };
            self.known.insert(place, known);
        }
        &self.known[&place]
    }

    /// Symbols of a place with this address and symbol.
    fn known_of(&mut self, module: &Module, place: Place, address: u64, symbol: Option<Symbol>) -> Known {
        let base = frame_in(module);
        let call =
            if place.is_executing { None } else { Call::before(module, place.offset + 1, address + 1) };
        let Some(symbol) = symbol else {
            let frame = Frame { symbol: go_name(&mut self.go, module, address), ..base };
            return Known { frames: vec![frame], function: None, call };
        };
        let last = symbol.functions.len().saturating_sub(1);
        let frame = |(index, function): (usize, protocol::Named)| Frame {
            symbol: function.name,
            file: function.file,
            line: function.line,
            inlined: index < last,
            ..base.clone()
        };
        let frames = symbol.functions.into_iter().enumerate().map(frame).collect();
        Known { frames, function: Some(symbol.start), call }
    }
}

impl Place {
    /// Returns true if it is the return address of a signal handler.
    fn is_signal(self, module: &Module) -> bool {
        !self.is_executing && signal::is_return(module, self.offset + 1)
    }

    /// The place at this address in the file.
    const fn at(self, address: u64) -> protocol::Place {
        protocol::Place { address, is_call: !self.is_executing }
    }
}

impl Known {
    /// The frame between a signal handler and what it has interrupted.
    fn signal(module: &Module) -> Self {
        let symbol = signal::NAME.to_owned();
        let frame = Frame { symbol, kind: FrameKind::Signal, ..frame_in(module) };
        Self { frames: vec![frame], ..Self::default() }
    }
}

/// Frames of code that is not in a file.
fn generated_frames(
    frame: StackFrame,
    generated: &GeneratedFrames,
    distinct: &mut FrameSet,
) -> Vec<SharedFrame> {
    let by_frame_pointer = frame.is_by_frame_pointer();
    let Some(named) = generated.get(&frame.however_found()) else {
        return vec![distinct.share(Frame { address: without_mark(frame), ..Frame::default() })];
    };
    let mut as_found = |named: &SharedFrame| {
        if named.by_frame_pointer == by_frame_pointer {
            return Arc::clone(named);
        }
        distinct.share(Frame { by_frame_pointer, ..Frame::clone(named) })
    };
    named.iter().map(&mut as_found).collect()
}

/// The address, or that of the method for an interpreted frame.
fn without_mark(frame: StackFrame) -> u64 {
    InterpretedFrame::unpack(frame).map_or(frame.address(), |frame| frame.method)
}

/// A frame with no more than its file.
fn frame_in(module: &Module) -> Frame {
    Frame {
        module: module.path.to_string_lossy().into_owned(),
        build_id: module.build_id().to_owned(),
        kind: if jvm::is_library(module) { FrameKind::Jvm } else { FrameKind::Native },
        ..Frame::default()
    }
}

/// The Go function at an address; empty if unknown.
fn go_name(known: &mut FastMap<FileVersion, Option<GoNames>>, module: &Module, address: u64) -> String {
    let names =
        known.entry(module.version).or_insert_with(|| GoNames::read(Content::from(&module.content().ok()?)));
    let name = names.as_ref().and_then(|names| names.at(address));
    name.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::{Mapping, ModuleFiles, Pid};

    #[test]
    fn what_executes_at_an_offset_is_not_the_call_that_ends_there() {
        let pid = Pid::new(std::process::id()).unwrap();
        let mut modules = ModuleTable::default();
        let id = modules.refresh(&mut ModuleFiles::default(), pid, &Mapping::all(pid).unwrap())[0];
        let place = |is_executing| Place { file: modules.get(id).version, offset: 0x40, is_executing };
        let mut symbols = NativeSymbols::new(Symbolizer::in_process());
        symbols.set_function(modules.get(id), 0x40, "malloc");
        assert_eq!(symbols.locate(modules.get(id), place(true), None).frames[0].symbol, "malloc");
        assert_eq!(symbols.locate(modules.get(id), place(false), None).frames[0].symbol, "");
    }

    #[test]
    fn a_place_that_was_first_seen_without_an_address_gets_its_name_later() {
        let pid = Pid::new(std::process::id()).unwrap();
        let mut modules = ModuleTable::default();
        modules.refresh(&mut ModuleFiles::default(), pid, &Mapping::all(pid).unwrap());
        let found = modules.find(getpid_address()).unwrap();
        let module = modules.get(found.module);
        let place = Place { file: module.version, offset: found.offset, is_executing: true };
        let mut symbols = NativeSymbols::new(Symbolizer::in_process());
        let mut distinct = FrameSet::default();
        let mut is_named = |in_file| {
            let at = InProcess { place, in_file, address: getpid_address(), by_frame_pointer: false };
            symbols.shared(module, at, &mut distinct)[0].symbol.ends_with("getpid")
        };
        assert!(!is_named(None));
        assert!(is_named(found.address));
    }

    fn getpid_address() -> u64 {
        nix::libc::getpid as *const () as u64
    }
}
