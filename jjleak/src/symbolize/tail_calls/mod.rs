//! Frames removed by tail calls.
//!
//! A function that ends with a tail call jumps to the callee: it has no frame while the callee runs, and its caller seems to have
//! called the callee. The call instruction has the function that was really called; if another one runs, tail calls led there.
//! The search follows jumps through the code of functions with debug information, and restores the frames on the path if it is
//! the only one. gdb uses DWARF call sites instead, of which clang omits some and Rust all; the code has all jumps of a function.

mod chain;
mod code;
mod linkage;

use std::collections::HashMap;
use std::rc::Rc;

use crate::file_content::Content;
use crate::processes::{FileVersion, Module};
use crate::symbolize::child::Symbolizer;
use chain::{Callee, Functions, TailCall, Target};
use code::Jump;
use linkage::Linkage;

pub(super) use chain::Function;

/// Maximum number of cached files; beyond, the cache is cleared. A host maps fewer at a time.
const MAX_FILES: usize = 512;
/// Maximum number of code bytes read of a file; beyond, nothing more is restored. Hot stacks of a large program lead through a few
/// thousand functions of a few hundred bytes.
const MAX_READ_BYTES: u64 = 64 << 20;
/// Maximum number of cached functions per file; beyond, the cache is cleared.
const MAX_FUNCTIONS: usize = 1 << 16;
/// Number of bytes that a function counts for besides its code: what its cached result takes.
const FUNCTION_BYTES: u64 = 256;

/// A call in a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    /// Address of the called function.
    pub(super) function: u64,
    /// Address after the call.
    pub(super) end: u64,
}

impl Call {
    /// The call that ends at a file offset, which has the address `end`, if it is a direct call.
    pub(super) fn before(module: &Module, offset: u64, end: u64) -> Option<Self> {
        let mut bytes = [0; code::CALL_BYTES];
        let is_read = module.read_at(offset.checked_sub(bytes.len() as u64)?, &mut bytes);
        let function = code::called(bytes, end).filter(|_| is_read)?;
        Some(Self { function, end })
    }
}

/// Finds tail calls.
#[derive(Default)]
pub(super) struct TailCalls {
    files: HashMap<FileVersion, KnownFile>,
}

/// Cached data of a file, read on demand.
#[derive(Default)]
struct KnownFile {
    /// Functions by entry address; `None` where there is none.
    functions: HashMap<u64, Option<Rc<Function>>>,
    linkage: Option<Linkage>,
    /// Results of [`Functions::tail_calls`] by entry address.
    tail_calls: HashMap<u64, Option<Rc<[TailCall]>>>,
    read_bytes: u64,
}

impl TailCalls {
    /// Tail calls between a call and the function executing at an address of `callee`, outermost first, as addresses after the
    /// instructions. Empty unless they are certain.
    pub(super) fn between(
        &mut self,
        symbolizer: &mut Symbolizer,
        (module, call): (&Module, Call),
        (callee, running): (&Module, u64),
    ) -> Vec<u64> {
        let callee = if callee.version == module.version {
            Callee::Code(running)
        } else {
            Callee::Exported(self.file(callee).linkage(callee).exported(running))
        };
        let mut program = Program { module, known: self.file(module), symbolizer };
        // The dynamic loader has chosen the target.
        if program.stub(call.function).is_some() {
            return Vec::new();
        }
        chain::find(&mut program, call.function, &callee).unwrap_or_default()
    }

    fn file(&mut self, module: &Module) -> &mut KnownFile {
        if self.files.len() >= MAX_FILES && !self.files.contains_key(&module.version) {
            self.files.clear();
        }
        self.files.entry(module.version).or_default()
    }
}

impl KnownFile {
    fn linkage(&mut self, module: &Module) -> &Linkage {
        let read = || {
            module
                .content()
                .ok()
                .and_then(|content| Linkage::read(Content::from(&content)))
                .unwrap_or_default()
        };
        self.linkage.get_or_insert_with(read)
    }
}

/// A file's functions.
struct Program<'a> {
    module: &'a Module,
    known: &'a mut KnownFile,
    symbolizer: &'a mut Symbolizer,
}

impl Program<'_> {
    /// Reads code. Returns true if there are enough bytes.
    fn read(&self, address: u64, code: &mut [u8]) -> bool {
        self.module.offset_of_code(address).is_some_and(|offset| self.module.read_at(offset, code))
    }

    /// The word through which a stub at an address jumps, if there is one.
    fn stub(&self, address: u64) -> Option<u64> {
        let mut code = [0; code::STUB_BYTES];
        if self.read(address, &mut code) { code::stub(&code, address) } else { None }
    }

    /// Follows the jumps in a function's code.
    fn follow(&mut self, function: &Function) -> Option<Rc<[TailCall]>> {
        let mut calls = Vec::new();
        for part in &function.code {
            let length =
                part.end.checked_sub(part.start).filter(|bytes| *bytes <= code::MAX_FUNCTION_BYTES)?;
            self.known.read_bytes += length;
            if self.known.read_bytes > MAX_READ_BYTES {
                return None;
            }
            let mut code = vec![0; usize::try_from(length).ok()?];
            if !self.read(part.start, &mut code) {
                return None;
            }
            let exits = code::exits(&code, part, function)?;
            if calls.len() + exits.len() > chain::MAX_VISITED {
                return None;
            }
            for (end, jump) in exits {
                let target = match jump {
                    Jump::Through(word) => self.import(word)?,
                    Jump::To(address) => match self.stub(address) {
                        Some(word) => self.import(word)?,
                        None => Target::Code(address),
                    },
                };
                calls.push(TailCall { end, target });
            }
        }
        Some(calls.into())
    }

    fn import(&mut self, word: u64) -> Option<Target> {
        self.known.linkage(self.module).import(word).map(|name| Target::Import(name.to_owned()))
    }
}

impl Functions for Program<'_> {
    fn at(&mut self, address: u64) -> Option<Rc<Function>> {
        if self.known.functions.len() >= MAX_FUNCTIONS {
            self.known.functions.clear();
        }
        let Self { module, known, symbolizer } = self;
        let ask = || symbolizer.function(module, address).map(Rc::new);
        known.functions.entry(address).or_insert_with(ask).clone()
    }

    fn tail_calls(&mut self, function: &Function) -> Option<Rc<[TailCall]>> {
        if let Some(known) = self.known.tail_calls.get(&function.start) {
            return known.clone();
        }
        if self.known.read_bytes > MAX_READ_BYTES {
            return None;
        }
        self.known.read_bytes += FUNCTION_BYTES;
        let calls = self.follow(function);
        self.known.tail_calls.insert(function.start, calls.clone());
        calls
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::{Mapping, ModuleFiles, ModuleTable, Pid};

    #[test]
    fn a_functions_code_is_read_once_and_a_files_up_to_a_limit() {
        let pid = Pid::new(std::process::id()).unwrap();
        let mut modules = ModuleTable::default();
        modules.refresh(&mut ModuleFiles::default(), pid, &Mapping::all(pid).unwrap());
        let code = modules.find(own_code as fn() as usize as u64).unwrap();
        let start = code.address.unwrap();
        let function = |start: u64| Function { start, code: std::iter::once(start..start + 1).collect() };
        let (mut known, mut symbolizer) = (KnownFile::default(), Symbolizer::in_process());
        let module = modules.get(code.module);
        let mut program = Program { module, known: &mut known, symbolizer: &mut symbolizer };

        let first = program.tail_calls(&function(start));
        assert_eq!(program.known.read_bytes, FUNCTION_BYTES + 1);
        assert_eq!(program.tail_calls(&function(start)), first);
        assert_eq!(program.known.read_bytes, FUNCTION_BYTES + 1, "it was read again");

        program.known.read_bytes = MAX_READ_BYTES;
        assert_eq!(program.tail_calls(&function(start + 1)), None);
        let over = program.known.read_bytes;
        assert_eq!(program.tail_calls(&function(start + 2)), None);
        assert!(over > MAX_READ_BYTES && program.known.read_bytes == over);
        assert_eq!(program.known.tail_calls.len(), 2);
    }

    fn own_code() {}
}
