//! Source of a file's names, source files and lines.

use object::{Object, ObjectSection};

use crate::file_content::Content;

/// Available names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Symbols {
    /// True if all functions have names (`.symtab`).
    pub all: bool,
    /// True if exported functions have names (`.dynsym`).
    pub exported: bool,
    /// True if source files, lines and inlined functions are known (DWARF).
    pub lines: bool,
    /// The separate debug file, if there is one.
    pub debug_file: Option<DebugFile>,
}

/// A separate debug file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DebugFile {
    /// True if it has lines.
    pub lines: bool,
}

impl Symbols {
    pub(super) fn of(elf: Content<'_>, debug_file: Option<Content<'_>>) -> Self {
        let Ok(file) = object::File::parse(elf) else { return Self::default() };
        Self {
            all: file.symbol_table().is_some(),
            exported: file.dynamic_symbol_table().is_some(),
            lines: has_lines(&file),
            debug_file: DebugFile::of(debug_file),
        }
    }

    /// Returns true if every function has a name.
    #[must_use]
    pub fn are_all(&self) -> bool {
        self.all || self.lines || self.debug_file.is_some()
    }

    /// Returns true if lines are known.
    #[must_use]
    pub fn have_lines(&self) -> bool {
        self.lines || self.debug_file.as_ref().is_some_and(|file| file.lines)
    }
}

impl DebugFile {
    fn of(elf: Option<Content<'_>>) -> Option<Self> {
        let file = object::File::parse(elf?).ok()?;
        Some(Self { lines: has_lines(&file) })
    }
}

fn has_lines<'data>(file: &object::File<'data, Content<'data>>) -> bool {
    let is_there = |name| file.section_by_name(name).is_some_and(|section| section.size() > 0);
    is_there(".debug_info") || is_there(".zdebug_info")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_has_names_and_lines() {
        let exe = std::env::current_exe().unwrap();
        let symbols = Symbols::of((&std::fs::read(&exe).unwrap()).into(), None);
        assert!(symbols.all && symbols.lines && symbols.are_all() && symbols.have_lines());
    }

    #[test]
    fn what_was_taken_out_is_in_the_debug_file() {
        let exe = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let symbols =
            Symbols { exported: true, debug_file: DebugFile::of(Some((&exe).into())), ..Symbols::default() };
        assert_eq!(symbols.debug_file, Some(DebugFile { lines: true }));
        assert!(symbols.are_all() && symbols.have_lines());
        assert_eq!(DebugFile::of(None), None);
        assert_eq!(DebugFile::of(Some(b"none".into())), None);
    }

    #[test]
    fn what_is_no_elf_file_has_no_names() {
        assert_eq!(Symbols::of(b"#!/bin/sh".into(), None), Symbols::default());
    }
}
