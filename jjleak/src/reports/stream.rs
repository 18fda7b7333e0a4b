//! Renders profiles piece by piece: a large one would take as much memory again.

use std::io::{self, BufWriter, Write};

use super::Error;
use crate::profile::Profile;
use crate::render::{Format, Options, render_to};

/// Size of a piece.
const PIECE_BYTES: usize = 64 << 10;

/// A destination, and the reason why it failed.
struct Destination<F> {
    write: F,
    failure: Option<Error>,
}

impl<F: FnMut(&[u8]) -> Result<(), Error>> Write for Destination<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.failure.is_none() {
            self.failure = (self.write)(bytes).err();
        }
        if self.failure.is_none() { Ok(bytes.len()) } else { Err(io::Error::other("the destination failed")) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Renders a profile, and passes the pieces to `write`. Fails with the first error of either.
pub(super) fn stream(
    profile: &Profile,
    format: Format,
    options: &Options,
    write: impl FnMut(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut destination = Destination { write, failure: None };
    let mut pieces = BufWriter::with_capacity(PIECE_BYTES, &mut destination);
    let rendered = render_to(profile, format, options, &mut pieces);
    // The destination keeps its error.
    let _ = pieces.flush();
    drop(pieces);
    destination.failure.map_or_else(|| rendered.map_err(Error::from), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::{render, sample};

    #[test]
    fn the_pieces_are_the_whole_document() {
        for format in Format::ALL {
            let mut streamed = Vec::new();
            let write = |bytes: &[u8]| {
                streamed.extend_from_slice(bytes);
                Ok(())
            };
            stream(&sample::profile(), format, &sample::options(), write).unwrap();
            assert_eq!(streamed, render(&sample::profile(), format, &sample::options()).unwrap(), "{format}");
        }
    }

    #[test]
    fn a_destination_that_fails_gets_nothing_more_and_its_error_is_reported() {
        let mut profile = sample::profile();
        profile.stacks = vec![profile.stacks[1].clone(); 1000];
        let mut pieces = 0;
        let write = |_: &[u8]| {
            pieces += 1;
            Err(Error::Stdout(io::Error::other("full")))
        };
        let outcome = stream(&profile, Format::Json, &sample::options(), write);
        assert!(matches!(outcome, Err(Error::Stdout(_))), "{outcome:?}");
        assert_eq!(pieces, 1);
    }
}
