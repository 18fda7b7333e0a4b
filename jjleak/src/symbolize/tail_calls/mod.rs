//! Frames that tail calls have taken from the stack.
//!
//! A function that ends with a call of another jumps to it instead: it has no frame when the other runs, and its caller seems
//! to have called the other. Who was called stands in the call instruction; if that is not who runs, jumps led there. They are
//! followed through the code of functions whose place debug information tells, and what is on the only way is restored. gdb does the
//! same by call sites of DWARF, of which clang leaves some out and Rust all: all jumps of a function are in its code.

mod chain;
mod code;
mod debug_info;
mod linkage;

use std::cell::OnceCell;
use std::collections::HashMap;
use std::rc::Rc;

use crate::processes::{FileVersion, Module};
use chain::{Callee, Function, Functions, TailCall, Target};
use code::Jump;
use debug_info::DebugInfo;
use linkage::Linkage;

/// Most files of which something is known at a time; then all are forgotten. A host maps fewer at a time.
const MAX_FILES: usize = 512;

/// Where a call of a file's function was seen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    /// Address of the function that was called.
    pub(super) function: u64,
    /// Address at which the call ends.
    pub(super) end: u64,
}

impl Call {
    /// The call that ends at an offset of a file, which has this address, if it says whom it calls.
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

/// What is known of a file, read when it is first needed.
#[derive(Default)]
struct KnownFile {
    debug_info: OnceCell<Option<DebugInfo>>,
    linkage: Option<Linkage>,
}

impl TailCalls {
    /// The tail calls between a call and the function that was found running at an address of a file, outermost first, by the
    /// addresses at which they end. There are none unless it is certain what they are.
    pub(super) fn between(&mut self, module: &Module, call: Call, callee: &Module, running: u64) -> Vec<u64> {
        let callee = if callee.version == module.version {
            Callee::Code(running)
        } else {
            Callee::Exported(self.file(callee).linkage(callee).exported(running))
        };
        let mut program = Program { module, known: self.file(module) };
        // Whom it leads to, the dynamic loader has decided.
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
    fn debug_info(&mut self, module: &Module) -> Option<&mut DebugInfo> {
        let open = || {
            let separate = || DebugInfo::open(&module.open_debug_file()?);
            DebugInfo::open(module.file()).or_else(separate)
        };
        self.debug_info.get_or_init(open);
        self.debug_info.get_mut()?.as_mut()
    }

    fn linkage(&mut self, module: &Module) -> &Linkage {
        let read = || module.parts().ok().and_then(|parts| Linkage::read(&parts)).unwrap_or_default();
        self.linkage.get_or_insert_with(read)
    }
}

/// A file's functions.
struct Program<'a> {
    module: &'a Module,
    known: &'a mut KnownFile,
}

impl Program<'_> {
    /// Reads code; whether there is as much of it.
    fn read(&self, address: u64, code: &mut [u8]) -> bool {
        self.module.offset_of_code(address).is_some_and(|offset| self.module.read_at(offset, code))
    }

    /// The word through which a stub at an address jumps, if there is one.
    fn stub(&self, address: u64) -> Option<u64> {
        let mut code = [0; code::STUB_BYTES];
        if self.read(address, &mut code) { code::stub(&code, address) } else { None }
    }

    fn import(&mut self, word: u64) -> Option<Target> {
        self.known.linkage(self.module).import(word).map(|name| Target::Import(name.to_owned()))
    }
}

impl Functions for Program<'_> {
    fn at(&mut self, address: u64) -> Option<Rc<Function>> {
        self.known.debug_info(self.module)?.at(address)
    }

    fn tail_calls(&mut self, function: &Function) -> Option<Vec<TailCall>> {
        let mut calls = Vec::new();
        for part in &function.code {
            let length =
                part.end.checked_sub(part.start).filter(|bytes| *bytes <= code::MAX_FUNCTION_BYTES)?;
            let mut code = vec![0; usize::try_from(length).ok()?];
            if !self.read(part.start, &mut code) {
                return None;
            }
            for (end, jump) in code::exits(&code, part, function)? {
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
        Some(calls)
    }
}
