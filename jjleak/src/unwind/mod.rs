//! Compiles a module's call frame information into rows: how to get from a frame to its caller, for each address.
//!
//! In: the bytes of an ELF file or of the vDSO, and its build ID. Out: [`VerifiedRows`], in the form that the unwinder in
//! the kernel searches, from the [`RowCache`] when the module was seen before, and compared with the module's code each time. What rows cannot express is marked
//! unsupported, never guessed; nothing in the bytes is trusted, and the work is linear in their number.

mod assemble;
mod cache;
mod entries;
mod fibre;
mod go;
mod module;
mod prologue;
mod rule;
mod sections;
mod start;
#[cfg(test)]
mod test_elf;
#[cfg(test)]
mod tests;
mod verify;

pub use cache::RowCache;
pub use entries::Statistics;
pub use go::GoNames;
pub use module::{Coverage, ModuleRows};
pub use rule::Unsupported;
pub use verify::{Agreement, Verification, VerifiedRows};

use object::ReadRef;

use self::{entries::Entries, sections::CallFrames};

/// Most rows of a module: as many as four of the kernel side's tables hold by default, and more than any file that
/// was measured has (libLLVM: 949 thousand).
pub const MAX_ROWS: usize = 1 << 22;

/// Why a module has no rows.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It is no 64-bit little-endian ELF file, or a broken one.
    #[error("cannot parse it as a 64-bit ELF file")]
    Parse(#[source] object::Error),
    /// Its code is for another processor; the number is ELF's `e_machine`.
    #[error("its code is for ELF machine {0}, not x86-64")]
    Machine(u16),
    /// It has no executable segment.
    #[error("it holds no code")]
    NoCode,
    /// It describes no frame of its code: hand-written assembly, or compiled without unwind tables.
    #[error("it has no call frame information")]
    NoCallFrames,
    /// It has more than [`MAX_ROWS`].
    #[error("its call frame information has more than {MAX_ROWS} rows")]
    TooManyRows,
    /// Its code says that they are not its own.
    #[error(
        "its call frame information does not match its code: it is right for {} of {} functions and {} of {} symbols that \
         were compared", .0.functions.agreeing, .0.functions.compared, .0.symbols.agreeing, .0.symbols.compared
    )]
    Refuted(Verification),
}

/// Compiles the call frame information of an ELF file, or of a vDSO that was read from memory.
pub fn compile<'data>(elf: impl ReadRef<'data>) -> Result<ModuleRows, Error> {
    CallFrames::locate(elf)?.compile()
}

/// The rows of an ELF file, compiled and compared with its code.
pub fn verified<'data>(elf: impl ReadRef<'data>) -> Result<VerifiedRows, Error> {
    verify::verify(compile(elf)?, elf)
}

impl CallFrames<'_> {
    /// `.eh_frame` comes first: where both describe a function, it is what the program itself unwinds by.
    fn compile(&self) -> Result<ModuleRows, Error> {
        let mut entries = Entries::new(&self.text);
        // Before glibc's own entry, which does not say that nobody has called it; not as all that is known of the module.
        if self.eh_frame.is_some() || self.debug_frame.is_some() {
            entries.add_fibres(&self.fibres);
        }
        if let Some(section) = &self.eh_frame {
            entries.read_eh_frame(section)?;
        }
        // Before what Go's linker writes for debuggers, which leads across no stack.
        if let Some(go) = &self.go {
            entries.read_go(go)?;
        }
        if let Some(section) = &self.debug_frame {
            entries.read_debug_frame(section)?;
        }
        entries.add_start(&self.start);
        assemble::assemble(entries)
    }
}
