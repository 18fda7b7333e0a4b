//! Arguments of a probe, as the assembler has written down their operands: `8@%rdi -4@$5 8@-8(%rbp,%rcx,4)`
//! (<https://sourceware.org/systemtap/wiki/UserSpaceProbeImplementation>).

use jjleak_common::samples::{Argument, NO_REGISTER};

/// Registers in the order of the kernel's `pt_regs` (arch/x86/include/uapi/asm/ptrace.h), by their names of 8, 4, 2 and 1 bytes.
const REGISTERS: [[&str; 4]; 21] = [
    ["r15", "r15d", "r15w", "r15b"],
    ["r14", "r14d", "r14w", "r14b"],
    ["r13", "r13d", "r13w", "r13b"],
    ["r12", "r12d", "r12w", "r12b"],
    ["rbp", "ebp", "bp", "bpl"],
    ["rbx", "ebx", "bx", "bl"],
    ["r11", "r11d", "r11w", "r11b"],
    ["r10", "r10d", "r10w", "r10b"],
    ["r9", "r9d", "r9w", "r9b"],
    ["r8", "r8d", "r8w", "r8b"],
    ["rax", "eax", "ax", "al"],
    ["rcx", "ecx", "cx", "cl"],
    ["rdx", "edx", "dx", "dl"],
    ["rsi", "esi", "si", "sil"],
    ["rdi", "edi", "di", "dil"],
    ["", "", "", ""],
    ["rip", "", "", ""],
    ["", "", "", ""],
    ["", "", "", ""],
    ["rsp", "esp", "sp", "spl"],
    ["", "", "", ""],
];

/// The registers that consumers which ignore descriptors read.
const CONVENTION: &str = "8@%rdi 8@%rsi 8@%rdx";

/// The first `number` arguments; `None` if one is missing or has an operand that is not known. Probes without a description pass them as
/// functions do.
pub(super) fn arguments(description: &str, number: usize) -> Option<Vec<Argument>> {
    let description = if description.trim().is_empty() { CONVENTION } else { description };
    let arguments: Vec<_> =
        description.split_ascii_whitespace().take(number).map(argument).collect::<Option<_>>()?;
    (arguments.len() == number).then_some(arguments)
}

fn argument(text: &str) -> Option<Argument> {
    let (is_signed, bytes, operand) = match text.split_once('@') {
        None => (false, 8, text),
        Some((size, operand)) => {
            let bytes = size.strip_prefix('-').unwrap_or(size);
            (size.starts_with('-'), bytes.parse().ok().filter(|bytes| [1, 2, 4, 8].contains(bytes))?, operand)
        }
    };
    let argument = Argument { bytes, is_signed: is_signed.into(), ..Argument::ZERO };
    if let Some(value) = operand.strip_prefix('$') {
        return Some(Argument { value: number(value)?, ..argument });
    }
    if operand.starts_with('%') {
        return Some(Argument { register: register(operand)?, ..argument });
    }
    let (value, address) = operand.strip_suffix(')')?.split_once('(')?;
    let mut parts = address.split(',');
    let (base, index, scale) = (parts.next()?, parts.next(), parts.next());
    if base == "%rip" || parts.next().is_some() {
        return None;
    }
    let scale: u8 = scale.map_or(Some(1), |scale| scale.trim().parse().ok())?;
    Some(Argument {
        value: if value.is_empty() { 0 } else { number(value)? },
        register: if base.is_empty() { NO_REGISTER } else { address_register(base)? },
        index: index.map_or(Some(NO_REGISTER), address_register)?,
        scale: [1, 2, 4, 8].contains(&scale).then_some(scale)?,
        in_memory: 1,
        ..argument
    })
}

/// Offset of a register in `pt_regs`.
fn register(name: &str) -> Option<u16> {
    let name = name.trim().strip_prefix('%').filter(|name| !name.is_empty())?;
    let place = REGISTERS.iter().position(|names| names.contains(&name))?;
    u16::try_from(place * 8).ok()
}

/// The same of one that addresses are computed with.
fn address_register(name: &str) -> Option<u16> {
    let is_whole = REGISTERS.iter().any(|[whole, ..]| name.trim().strip_prefix('%') == Some(*whole));
    register(name).filter(|_| is_whole)
}

/// A decimal or hexadecimal number. Constants of 64 bits can be written without a sign.
fn number(text: &str) -> Option<i64> {
    let (is_negative, digits) = text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
    let value = match digits.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok()?,
        None => digits.parse::<u64>().ok()?,
    };
    Some(if is_negative { value.cast_signed().wrapping_neg() } else { value.cast_signed() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RDI: u16 = 112;
    const RBP: u16 = 32;
    const RCX: u16 = 88;

    fn of(text: &str) -> Option<Argument> {
        argument(text)
    }

    #[test]
    fn registers_have_their_places_in_the_kernels_structure() {
        assert_eq!(of("8@%rdi"), Some(Argument { register: RDI, ..Argument::ZERO }));
        assert_eq!(of("-4@%edi"), Some(Argument { register: RDI, bytes: 4, is_signed: 1, ..Argument::ZERO }));
        assert_eq!(of("1@%r15b"), Some(Argument { register: 0, bytes: 1, ..Argument::ZERO }));
        assert_eq!(of("%rbp"), Some(Argument { register: RBP, ..Argument::ZERO }));
    }

    #[test]
    fn constants_are_numbers_in_either_base() {
        let value = |text| of(text).map(|argument| (argument.value, argument.register));
        assert_eq!(value("8@$512"), Some((512, NO_REGISTER)));
        assert_eq!(value("-8@$-1"), Some((-1, NO_REGISTER)));
        assert_eq!(value("8@$0x10"), Some((16, NO_REGISTER)));
        assert_eq!(value("8@$18446744073709551615"), Some((-1, NO_REGISTER)));
    }

    #[test]
    fn memory_has_a_base_an_index_and_a_distance() {
        let memory = Argument { in_memory: 1, register: RBP, ..Argument::ZERO };
        assert_eq!(of("8@(%rbp)"), Some(memory));
        assert_eq!(of("8@-16(%rbp)"), Some(Argument { value: -16, ..memory }));
        let indexed = Argument { value: 8, index: RCX, scale: 4, ..memory };
        assert_eq!(of("8@8(%rbp,%rcx,4)"), Some(indexed));
        assert_eq!(of("8@8(,%rcx,4)"), Some(Argument { register: NO_REGISTER, ..indexed }));
    }

    #[test]
    fn operands_that_are_not_known_are_refused() {
        for text in
            ["8@counter(%rip)", "8f@%xmm0", "3@%rdi", "8@%ah", "8@(%ebp)", "8@1(%rbp,%rcx,3)", "8@", ""]
        {
            assert_eq!(of(text), None, "{text}");
        }
    }

    #[test]
    fn probes_without_a_description_pass_arguments_as_functions_do() {
        assert_eq!(arguments("", 3), arguments("8@%rdi 8@%rsi 8@%rdx", 3));
        assert_eq!(arguments("8@%rdi", 3), None, "two are missing");
        assert_eq!(arguments("8@%rdi 8@%rsi", 1).unwrap().len(), 1);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[ -~]{0,40}") {
            let _ = arguments(&text, 3);
        }
    }
}
