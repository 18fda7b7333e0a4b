//! The frame between a signal handler and the code that it interrupted.
//!
//! The kernel has a handler return to code that calls `rt_sigreturn` (`SA_RESTORER`, which x86-64 demands). C libraries keep
//! that code without a symbol, or with one that only people know who work on them.

use crate::processes::Module;

/// What handlers return to begins with: `mov $15, %rax` or `mov $15, %eax`, and `syscall`. Debuggers and unwinders know it by the
/// same bytes (`MD_FALLBACK_FRAME_STATE_FOR` of GCC, `amd64_linux_sigtramp_start` of gdb): glibc, musl and Go's runtime write
/// the first.
const RETURN: [&[u8]; 2] =
    [&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05], &[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05]];
const LONGEST: usize = RETURN[0].len();

/// The frame's name, as gdb has it: it is nobody's function.
pub(super) const NAME: &str = "<signal handler called>";

/// Whether who returns to this offset of a file returns from a signal handler.
pub(super) fn is_return(module: &Module, offset: u64) -> bool {
    let mut code = [0; LONGEST];
    module.read_at(offset, &mut code) && begins_return(&code)
}

fn begins_return(code: &[u8]) -> bool {
    RETURN.iter().any(|bytes| code.starts_with(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_that_only_resembles_a_return_is_none() {
        let getpid = [0x48, 0xc7, 0xc0, 0x27, 0, 0, 0, 0x0f, 0x05];
        let without_call = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0xc3, 0x90];
        assert!(RETURN.iter().all(|code| begins_return(code)));
        assert!(![&getpid[..], &without_call, &getpid[..3], &[]].iter().any(|code| begins_return(code)));
    }
}
