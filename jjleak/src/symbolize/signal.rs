//! Frames between a signal handler and the interrupted code.
//!
//! Signal handlers return to code that calls `rt_sigreturn` (`SA_RESTORER`, required on x86-64). C libraries have no symbol for
//! this code, or an obscure one.

use crate::processes::Module;

/// First instructions of the code that handlers return to: `mov $15, %rax` or `mov $15, %eax`, and `syscall`. Debuggers and
/// unwinders match the same bytes (`MD_FALLBACK_FRAME_STATE_FOR` in GCC, `amd64_linux_sigtramp_start` in gdb). glibc, musl and
/// Go's runtime use the first.
const RETURN: [&[u8]; 2] =
    [&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05], &[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05]];
const LONGEST: usize = RETURN[0].len();

/// Name of the frame, as in gdb; it belongs to no function.
pub(super) const NAME: &str = "<signal handler called>";

/// Returns true if this file offset is the return address of a signal handler.
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
