//! Limits of the reader. A small file can expand to a large profile, through compression and repeated use of
//! a location.

use std::io::Read;

use super::error::Error;
use flate2::read::MultiGzDecoder;

/// Maximum size of a decompressed profile. A million stacks of 30 frames take about 100 MiB.
pub(super) const MAX_BYTES: u64 = 256 << 20;
/// Maximum size of all frames of all stacks in memory.
pub(super) const MAX_FRAME_BYTES: u64 = 2 << 30;

/// First bytes of a gzip file (RFC 1952, 2.3.1).
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// The message in a file, which may be uncompressed.
pub(super) fn decompressed(file: &[u8], limit: u64) -> Result<Vec<u8>, Error> {
    let too_large = || Error::TooLarge { limit, what: "bytes" };
    if !file.starts_with(&GZIP) {
        return if file.len() as u64 > limit { Err(too_large()) } else { Ok(file.to_vec()) };
    }
    let mut message = Vec::new();
    let mut bounded = MultiGzDecoder::new(file).take(limit + 1);
    bounded.read_to_end(&mut message).map_err(Error::Compression)?;
    if message.len() as u64 > limit { Err(too_large()) } else { Ok(message) }
}

/// Remaining memory budget.
pub(super) struct Budget(pub(super) u64);

impl Budget {
    pub(super) fn spend(&mut self, bytes: u64) -> Result<(), Error> {
        let too_large = || Error::TooLarge { limit: MAX_FRAME_BYTES, what: "bytes of frames" };
        self.0 = self.0.checked_sub(bytes).ok_or_else(too_large)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    #[test]
    fn a_small_file_that_unpacks_to_a_large_one_is_refused() {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
        gzip.write_all(&vec![0; 100_000]).unwrap();
        let bomb = gzip.finish().unwrap();
        assert!(bomb.len() < 1000);
        assert!(matches!(decompressed(&bomb, 99_999), Err(Error::TooLarge { limit: 99_999, .. })));
        assert_eq!(decompressed(&bomb, 100_000).unwrap().len(), 100_000);
    }
}
