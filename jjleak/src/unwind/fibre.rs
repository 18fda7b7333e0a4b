//! The code in which the stacks of fibres begin: what a fibre's function would return to, as `makecontext` of glibc and
//! `make_fcontext` of Boost.Context (which PHP has a copy of) arrange it; and that in which musl's threads begin, whose call frame
//! information does not say that nobody has called it.
//!
//! That code is the outermost frame: nobody has called it, and it ends the thread or goes on with another context. The return
//! address is its first byte, so that a search for the caller looks one byte before it.

use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use object::LittleEndian;
use object::elf::{FileHeader64, SHN_UNDEF, SHT_DYNSYM, SHT_SYMTAB, SectionType};
use object::read::elf::{SectionHeader, SectionTable, Sym};

use super::start::clears_frame_pointer;
use crate::file_content::{Content, Window};

/// The functions that make contexts, each of which loads the address of the code into a register, and the one that makes threads.
const MAKERS: [&[u8]; 3] = [b"makecontext", b"make_fcontext", b"__clone"];
/// Length of the longest of their names, and a NUL.
const MAX_NAME_BYTES: usize = 16;
/// Maximum number of such functions: a file has one, or one of each.
const MAX_MAKERS: usize = 16;
/// Most bytes of such a function that are read; glibc's has 309.
pub(super) const MAX_MAKER_BYTES: usize = 512;
/// Most bytes of code in which a fibre begins; glibc's has 26.
const MAX_ROOT_BYTES: usize = 64;
/// Most symbols of a file that are looked at; libLLVM has 40 thousand, and a browser with its symbols a million.
const MAX_SYMBOLS: usize = 1 << 20;

/// The addresses of functions that make contexts and threads.
pub(super) fn makers<'data>(
    sections: &SectionTable<'data, FileHeader64<LittleEndian>, Content<'data>>,
    elf: Content<'data>,
) -> Vec<u64> {
    let in_table = |kind: SectionType| {
        let Ok(symbols) = sections.symbols(LittleEndian, elf, kind) else { return Vec::new() };
        let names = sections.section(symbols.string_section()).ok();
        let names = names.and_then(|section| section.file_range(LittleEndian));
        let (begin, bytes) = names.unwrap_or_default();
        let end = begin.saturating_add(bytes);
        let mut window = Window::new(elf);
        let mut is_maker = |name: u32| {
            let name = begin.saturating_add(name.into());
            window.string(name..end, MAX_NAME_BYTES).is_some_and(|name| MAKERS.contains(&name))
        };
        let defined =
            symbols.iter().take(MAX_SYMBOLS).filter(|symbol| symbol.st_shndx(LittleEndian) != SHN_UNDEF);
        let found = defined.filter(|symbol| is_maker(symbol.st_name(LittleEndian)));
        found.map(|symbol| symbol.st_value(LittleEndian)).take(MAX_MAKERS).collect()
    };
    let dynamic = in_table(SHT_DYNSYM);
    // A program that exports them has no other ones.
    if dynamic.is_empty() { in_table(SHT_SYMTAB) } else { dynamic }
}

/// The code in which fibres begin that are made by the function at `address`, each with the byte before it. `read` gives code by its
/// address.
pub(super) fn roots<'data>(address: u64, read: impl Fn(u64) -> &'data [u8]) -> Vec<Range<u64>> {
    let code = read(address);
    let code = &code[..code.len().min(MAX_MAKER_BYTES)];
    let mut decoder = Decoder::with_ip(u64::BITS, code, address, DecoderOptions::NONE);
    let mut found = Vec::new();
    for instruction in &mut decoder {
        if instruction.mnemonic() == Mnemonic::Lea && instruction.is_ip_rel_memory_operand() {
            let target = instruction.ip_rel_memory_address();
            let end = root_end(read(target), target);
            found.extend(target.checked_sub(1).zip(end).map(|(begin, end)| begin..end));
        }
        // What follows is another function.
        if instruction.flow_control() == FlowControl::Return {
            break;
        }
    }
    found
}

/// The code in which a thread begins that the function at `address` makes: it clears the frame pointer, and ends the thread.
pub(super) fn thread_root(address: u64, code: &[u8]) -> Option<Range<u64>> {
    let code = &code[..code.len().min(MAX_ROOT_BYTES)];
    let mut decoder = Decoder::with_ip(u64::BITS, code, address, DecoderOptions::NONE);
    let mut begin = None;
    while decoder.can_decode() {
        let instruction = decoder.decode();
        if clears_frame_pointer(&instruction) {
            begin = Some(instruction.ip());
        }
        match instruction.flow_control() {
            _ if instruction.mnemonic() == Mnemonic::Hlt => return Some(begin?..instruction.next_ip()),
            FlowControl::Return => return None,
            _ => {}
        }
    }
    None
}

/// End of code in which a fibre begins; `None` for other code. Such code either takes its stack pointer from a register before
/// anything else (glibc), or ends the process (Boost), and never returns.
fn root_end(code: &[u8], address: u64) -> Option<u64> {
    let code = &code[..code.len().min(MAX_ROOT_BYTES)];
    let mut decoder = Decoder::with_ip(u64::BITS, code, address, DecoderOptions::NONE);
    let mut is_first = true;
    while decoder.can_decode() {
        let instruction = decoder.decode();
        if is_first && !sets_stack_pointer(&instruction) && !clears_argument(&instruction) {
            return None;
        }
        is_first = false;
        match instruction.flow_control() {
            _ if instruction.mnemonic() == Mnemonic::Hlt => return Some(instruction.next_ip()),
            FlowControl::Next | FlowControl::ConditionalBranch | FlowControl::Call => {}
            _ => return None,
        }
    }
    None
}

/// `mov %rbx, %rsp`.
fn sets_stack_pointer(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Mov
        && instruction.op1_kind() == OpKind::Register
        && (instruction.op0_register(), instruction.op1_register()) == (Register::RSP, Register::RBX)
}

/// `xor %rdi, %rdi`, for the status with which the process ends.
fn clears_argument(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Xor
        && instruction.op0_register().full_register() == Register::RDI
        && instruction.op0_register() == instruction.op1_register()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: u64 = 0x1000;

    /// Boost's `make_fcontext` from its second `lea` on: `lea finish(%rip), %rcx; mov %rcx, 0x30(%rax); ret; push %rbp; jmp *%rbx;
    /// xor %rdi, %rdi; call; hlt`.
    const BOOST: &[u8] = &[
        0x48, 0x8d, 0x0d, 8, 0, 0, 0, 0x48, 0x89, 0x48, 0x30, 0xc3, 0x55, 0xff, 0xe3, 0x48, 0x31, 0xff, 0xe8,
        0, 0, 0, 0, 0xf4, 0x90,
    ];
    /// glibc's `__start_context`, behind a `lea` of its address and padding.
    const GLIBC: &[u8] = &[
        0x48, 0x8d, 0x3d, 2, 0, 0, 0, 0xc3, 0x90, 0x48, 0x89, 0xdc, 0x48, 0x8b, 0x3c, 0x24, 0x48, 0x85, 0xff,
        0x74, 0x08, 0xe8, 0, 0, 0, 0, 0x48, 0x89, 0xc7, 0xe8, 0, 0, 0, 0, 0xf4,
    ];

    fn roots_in(code: &'static [u8]) -> Vec<Range<u64>> {
        roots(ADDRESS, |address| &code[usize::try_from(address - ADDRESS).unwrap().min(code.len())..])
    }

    #[test]
    fn fibres_begin_one_byte_before_the_code_that_they_would_return_to() {
        for (code, root) in [(BOOST, 14..24), (GLIBC, 8..35)] {
            let root = ADDRESS + root.start..ADDRESS + root.end;
            assert_eq!(roots_in(code), std::slice::from_ref(&root));
        }
    }

    #[test]
    fn code_that_returns_or_jumps_away_is_no_root() {
        for (at, instruction) in [(23, 0xc3), (18, 0xe9), (15, 0x90)] {
            let mut code = BOOST.to_vec();
            code[at] = instruction;
            assert_eq!(roots_in(code.leak()), [], "{at}");
        }
        assert_eq!(roots_in(&BOOST[..23]), [], "it is cut off");
        assert_eq!(roots_in(&[]), []);
    }

    #[test]
    fn a_thread_of_musl_begins_where_the_frame_pointer_is_cleared() {
        // The end of its `__clone`: `test %eax, %eax; jne 1f; xor %ebp, %ebp; pop %rdi; call *%r9; mov %eax, %edi; xor %eax, %eax;
        // mov $60, %al; syscall; hlt; 1: ret`.
        let mut code = [
            0x85, 0xc0, 0x75, 15, 0x31, 0xed, 0x5f, 0x41, 0xff, 0xd1, 0x89, 0xc7, 0x31, 0xc0, 0xb0, 60, 0x0f,
            5, 0xf4, 0xc3,
        ];
        assert_eq!(thread_root(ADDRESS, &code), Some(ADDRESS + 4..ADDRESS + 19));
        assert_eq!(thread_root(ADDRESS, &code[..18]), None, "it is cut off");
        code[18] = 0xc3;
        assert_eq!(thread_root(ADDRESS, &code), None, "it returns");
    }

    #[test]
    fn what_follows_the_function_is_not_examined() {
        let mut code = vec![0xc3];
        code.extend(BOOST);
        assert_eq!(roots_in(code.leak()), []);
    }
}
