//! Compiles a module's call frame information into rows: the rule for each address that leads from a frame to its caller.
//!
//! In: the bytes of an ELF file or of the vDSO, and its build ID. Out: [`VerifiedRows`], in the form that the unwinder in the
//! kernel searches. The rows come from the [`RowCache`] if the module is known, and are compared with the module's code each
//! time. Rules that rows cannot express are marked unsupported, never guessed; the bytes are not trusted, and the work is linear
//! in their number.

mod assemble;
mod cache;
mod entries;
mod fibre;
mod finish;
mod from_code;
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
pub use finish::{Code, Finished, StackCopy, StackPage, finish};
pub use go::GoNames;
pub use module::{Coverage, ModuleRows};
pub use rule::Unsupported;
pub use verify::{Agreement, Verification, VerifiedPart, VerifiedRows};

use crate::file_content::{Content, TooCostly};

use self::{entries::Entries, sections::CallFrames};

/// Maximum number of rows of a module: 64 MiB, and more than in any measured file (libLLVM: 949 thousand).
pub const MAX_ROWS: usize = 1 << 23;

/// Reason why a module has no rows.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file is not 64-bit little-endian ELF, or is broken.
    #[error("cannot parse it as a 64-bit ELF file")]
    Parse(#[source] object::Error),
    /// The code is for another processor; the number is ELF's `e_machine`.
    #[error("its code is for ELF machine {0}, not x86-64")]
    Machine(u16),
    /// The module has no executable segment.
    #[error("it holds no code")]
    NoCode,
    /// The module describes no frame of its code: hand-written assembly, or compiled without unwind tables.
    #[error("it has no call frame information")]
    NoCallFrames,
    /// The module has more than [`MAX_ROWS`].
    #[error("its call frame information has more than {MAX_ROWS} rows")]
    TooManyRows,
    /// The module describes more than a million functions.
    #[error("its call frame information describes more than {} functions", entries::MAX_FUNCTIONS)]
    TooManyFunctions,
    /// The file takes more memory or time than any program.
    #[error(transparent)]
    TooCostly(#[from] TooCostly),
    /// The code contradicts the rows.
    #[error(
        "its call frame information does not match its code: both agree for {} of {} functions and {} of {} symbols \
         compared", .0.functions.agreeing, .0.functions.compared, .0.symbols.agreeing, .0.symbols.compared
    )]
    Refuted(Verification),
}

/// Compiles the call frame information of an ELF file, or of a vDSO read from memory.
pub fn compile<'data>(elf: impl Into<Content<'data>>) -> Result<ModuleRows, Error> {
    let elf = elf.into();
    affordable(elf, CallFrames::locate(elf).and_then(|frames| frames.compile()))
}

/// Compiles the call frame information alone, without what the code says.
#[cfg(test)]
fn compile_described<'data>(elf: impl Into<Content<'data>>) -> Result<ModuleRows, Error> {
    assemble::assemble(CallFrames::locate(elf.into())?.entries()?)
}

/// Compiles the rows of an ELF file and compares them with its code.
pub fn verified<'data>(elf: impl Into<Content<'data>>) -> Result<VerifiedRows, Error> {
    let elf = elf.into();
    affordable(elf, verify::verify(compile(elf)?, elf))
}

/// An outcome, if the file could be read to the end of it: a file that can no longer be read looks damaged, or as if it had less
/// call frame information.
fn affordable<T>(elf: Content<'_>, outcome: Result<T, Error>) -> Result<T, Error> {
    elf.check()?;
    outcome
}

impl CallFrames<'_> {
    /// Reads `.eh_frame` first: where several sources describe a function, the first wins, and the program itself unwinds with
    /// `.eh_frame`.
    fn compile(&self) -> Result<ModuleRows, Error> {
        let mut entries = self.entries()?;
        entries.read_code(self.elf)?;
        assemble::assemble(entries)
    }

    /// The entries of call frame information and of Go's tables, without rows derived from code.
    fn entries(&self) -> Result<Entries<'_>, Error> {
        let mut entries = Entries::new(&self.text);
        // Before glibc's own entry, which does not say that nobody has called it; not as all that is known of the module.
        if self.eh_frame.is_some() || self.debug_frame.is_some() {
            entries.add_fibres(&self.fibres);
        }
        if let Some(section) = &self.eh_frame {
            entries.read_eh_frame(section)?;
        }
        // Before `.debug_frame`: Go's linker writes that section for debuggers, without rules that cross from one stack to
        // another.
        if let Some(go) = &self.go {
            entries.read_go(go)?;
        }
        if let Some(section) = &self.debug_frame {
            entries.read_debug_frame(section)?;
        }
        entries.add_start(&self.start);
        Ok(entries)
    }
}
