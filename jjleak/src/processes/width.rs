//! Programs that are not 64-bit.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;

use object::elf::ELFMAG;

use super::Pid;

/// A program with 32-bit pointers. jjleak supports only the stacks, arguments and tables of 64-bit programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Narrow {
    /// For i386, the 32-bit predecessors of x86-64.
    I386,
    /// For x86-64, with 32-bit pointers.
    X32,
    /// For another machine.
    Other,
}

/// Size of the part of the ELF header with `e_ident`, `e_type` and `e_machine` (elf(5)).
const HEADER_BYTES: usize = 20;

impl Narrow {
    /// The kind of program that a process runs, if it is 32-bit.
    #[must_use]
    pub fn of(pid: Pid) -> Option<Self> {
        let mut header = [0; HEADER_BYTES];
        File::open(pid.proc_file("exe")).ok()?.read_exact_at(&mut header, 0).ok()?;
        Self::by_header(&header)
    }

    fn by_header(header: &[u8; HEADER_BYTES]) -> Option<Self> {
        // Offsets and values from elf(5).
        const CLASS: usize = 4;
        const CLASS_32: u8 = 1;
        const MACHINE: usize = 18;
        const EM_386: u16 = 3;
        const EM_X86_64: u16 = 62;
        if !header.starts_with(&ELFMAG) || header[CLASS] != CLASS_32 {
            return None;
        }
        Some(match u16::from_le_bytes([header[MACHINE], header[MACHINE + 1]]) {
            EM_386 => Self::I386,
            EM_X86_64 => Self::X32,
            _ => Self::Other,
        })
    }
}

impl fmt::Display for Narrow {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::I386 => "32-bit program (i386)",
            Self::X32 => "32-bit program (x32)",
            Self::Other => "32-bit program",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_programs_width_is_in_its_header() {
        let header = |class: u8, machine: u8| {
            let mut header = [0; HEADER_BYTES];
            header[..4].copy_from_slice(b"\x7fELF");
            (header[4], header[18]) = (class, machine);
            Narrow::by_header(&header)
        };
        assert_eq!(header(1, 3), Some(Narrow::I386));
        assert_eq!(header(1, 62), Some(Narrow::X32));
        assert_eq!(header(2, 62), None);
        assert_eq!(Narrow::by_header(&[0; HEADER_BYTES]), None);
        assert_eq!(Narrow::of(Pid::new(std::process::id()).unwrap()), None);
    }
}
