//! Mini debug info: the symbol table that distributions leave in stripped files, as an ELF file compressed with xz in the section
//! `.gnu_debugdata` (GDB manual, "Debugging information in a special section").

use std::io::Read;

use lzma_rust2::XzReader;

/// Maximum unpacked size: the target controls the file and its content. Fedora's have up to 10 MiB.
const MAX_BYTES: usize = 64 << 20;
/// Maximum memory for the decoder in KiB. `xz -9` needs 64 MiB for its dictionary.
const MAX_DECODER_KIB: u32 = 65 << 10;

/// Unpacks mini debug info; `None` if it is damaged or too large. Decoding stops at the maximum.
pub(super) fn unpack(compressed: &[u8]) -> Option<Vec<u8>> {
    let decoder = XzReader::new_mem_limit(compressed, false, MAX_DECODER_KIB);
    let mut unpacked = Vec::new();
    decoder.take(MAX_BYTES as u64 + 1).read_to_end(&mut unpacked).ok()?;
    (unpacked.len() <= MAX_BYTES).then_some(unpacked)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};
    use std::thread;

    use super::*;

    fn packed(content: &[u8], arguments: &[&str]) -> Vec<u8> {
        let mut xz = Command::new("xz");
        let xz = xz.arg("-c").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut xz = xz.expect("xz-utils is installed");
        let mut input = xz.stdin.take().unwrap();
        thread::scope(|scope| {
            scope.spawn(move || input.write_all(content).unwrap());
            xz.wait_with_output().unwrap().stdout
        })
    }

    #[test]
    fn what_was_packed_is_unpacked() {
        for level in ["-1", "-6", "-9"] {
            let packed = packed(b"an ELF file", &[level]);
            assert_eq!(unpack(&packed).as_deref(), Some(&b"an ELF file"[..]), "{level}");
        }
    }

    #[test]
    fn what_is_damaged_or_too_large_is_none() {
        let packed = packed(&vec![0; MAX_BYTES + 1], &[]);
        assert_eq!(unpack(&packed), None);
        assert_eq!(unpack(&packed[..packed.len() / 2]), None);
        assert_eq!(unpack(b"no xz"), None);
    }

    #[test]
    fn a_dictionary_larger_than_any_level_has_is_refused() {
        assert_eq!(unpack(&packed(b"an ELF file", &["--lzma2=dict=512MiB"])), None);
    }
}
