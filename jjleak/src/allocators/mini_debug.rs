//! Mini debug info: the symbol table that distributions leave in stripped files, as an ELF file compressed with xz in the section
//! `.gnu_debugdata` (GDB manual, "Debugging information in a special section").

use std::io::{self, Write};

/// Maximum unpacked size: the target controls the file and its content. Fedora's have up to 10 MiB.
const MAX_BYTES: usize = 64 << 20;

/// Unpacks mini debug info; `None` if it is damaged or too large.
pub(super) fn unpack(mut compressed: &[u8]) -> Option<Vec<u8>> {
    let mut unpacked = Bounded(Vec::new());
    lzma_rs::xz_decompress(&mut compressed, &mut unpacked).ok()?;
    Some(unpacked.0)
}

struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_BYTES {
            return Err(io::Error::other("too large"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_packed_is_unpacked() {
        let mut packed = Vec::new();
        lzma_rs::xz_compress(&mut &b"an ELF file"[..], &mut packed).unwrap();
        assert_eq!(unpack(&packed).as_deref(), Some(&b"an ELF file"[..]));
    }

    #[test]
    fn what_is_damaged_or_too_large_is_none() {
        let mut packed = Vec::new();
        lzma_rs::xz_compress(&mut &vec![0; MAX_BYTES + 1][..], &mut packed).unwrap();
        assert_eq!(unpack(&packed), None);
        assert_eq!(unpack(&packed[..packed.len() / 2]), None);
        assert_eq!(unpack(b"no xz"), None);
    }
}
