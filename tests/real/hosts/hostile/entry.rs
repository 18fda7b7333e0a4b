//! A row of the corpus.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::elf::Elf;
use crate::support::compile;

/// A file or process that is made to harm jjleak.
pub(super) struct Entry {
    pub(super) name: &'static str,
    /// A part of a message that names the entry; empty if jjleak need not say anything.
    pub(super) says: &'static str,
    trick: Trick,
    /// True if it takes too long for tests that run each time.
    pub(super) is_slow: bool,
}

enum Trick {
    /// Maps an ELF file, and allocates through it.
    Elf(Box<dyn Fn() -> Elf + Send>),
    /// Maps a file that this creates, and that is best written by hand.
    File(fn(&Path)),
    /// A trick of `tests/fixtures/hostile`, with a file or folder that this creates.
    Process(&'static str, fn(&Path)),
}

/// An ELF file.
pub(super) fn elf(name: &'static str, elf: impl Fn() -> Elf + Send + 'static) -> Entry {
    Entry { name, says: "", trick: Trick::Elf(Box::new(elf)), is_slow: false }
}

/// Any other file.
pub(super) fn file(name: &'static str, write: fn(&Path)) -> Entry {
    Entry { name, says: "", trick: Trick::File(write), is_slow: false }
}

/// A process: the name is that of a trick.
pub(super) fn process(name: &'static str) -> Entry {
    process_at(name, name, |_| {})
}

/// A process whose trick needs this path.
pub(super) fn process_at(name: &'static str, trick: &'static str, prepare: fn(&Path)) -> Entry {
    Entry { name, says: "", trick: Trick::Process(trick, prepare), is_slow: false }
}

impl Entry {
    pub(super) fn says(self, says: &'static str) -> Self {
        Self { says, ..self }
    }

    pub(super) fn slow(self) -> Self {
        Self { is_slow: true, ..self }
    }

    /// True if its process allocates through its file.
    pub(super) const fn calls(&self) -> bool {
        matches!(self.trick, Trick::Elf(_))
    }

    /// Creates its file in this folder. Returns the command that starts its process from `program`.
    pub(super) fn prepare(&self, folder: &Path, program: &Path) -> Command {
        let path: PathBuf = folder.join(self.name);
        let mut command = Command::new(program);
        match &self.trick {
            Trick::Elf(elf) => {
                elf().write(&path);
                command.arg("map-file");
            }
            Trick::File(write) => {
                write(&path);
                command.arg("map-file");
            }
            Trick::Process(trick, prepare) => {
                prepare(&path);
                command.arg(trick);
            }
        }
        command.arg(path);
        command
    }

    /// The same for the program itself.
    pub(super) fn command(&self, folder: &Path) -> Command {
        self.prepare(folder, compile::hostile())
    }
}
