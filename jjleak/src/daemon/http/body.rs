//! Response bodies that take little memory, however large they are and however slowly they are read.

use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Bytes, Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::{JoinHandle, spawn_blocking};

/// Size of a read, and of a connection's buffer.
const CHUNK: usize = 64 << 10;

type Source = Box<dyn Read + Send>;

/// Streams a number of bytes of a file or page, read as they are sent.
pub(super) struct Chunks {
    state: State,
    left: u64,
    /// Held until everything is sent or the client disconnects.
    _permit: Option<OwnedSemaphorePermit>,
}

enum State {
    Idle(Source),
    Reading(JoinHandle<io::Result<(Source, Vec<u8>)>>),
    Ended,
}

impl Chunks {
    pub(super) fn new(
        source: impl Read + Send + 'static,
        bytes: u64,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Self {
        Self { state: State::Idle(Box::new(source)), left: bytes, _permit: permit }
    }
}

impl hyper::body::Body for Chunks {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = self.get_mut();
        loop {
            match std::mem::replace(&mut this.state, State::Ended) {
                State::Ended => return Poll::Ready(None),
                State::Idle(_) if this.left == 0 => return Poll::Ready(None),
                State::Idle(source) => {
                    let most = this.left.min(CHUNK as u64);
                    this.state = State::Reading(spawn_blocking(move || chunk(source, most)));
                }
                State::Reading(mut reading) => {
                    let Poll::Ready(read) = Pin::new(&mut reading).poll(context) else {
                        this.state = State::Reading(reading);
                        return Poll::Pending;
                    };
                    let (source, bytes) = match read.map_err(io::Error::other).and_then(|read| read) {
                        Ok(read) => read,
                        Err(error) => return Poll::Ready(Some(Err(error))),
                    };
                    this.left -= bytes.len() as u64;
                    this.state = State::Idle(source);
                    return Poll::Ready(Some(Ok(Frame::data(bytes.into()))));
                }
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// Reads up to `most` bytes; an early end is an error.
fn chunk(mut source: Source, most: u64) -> io::Result<(Source, Vec<u8>)> {
    let mut bytes = Vec::new();
    (&mut source).take(most).read_to_end(&mut bytes)?;
    if bytes.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok((source, bytes)) }
}
