//! Where clients come in.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::daemon::config::Place;

/// The owner and its group may connect.
const SOCKET_MODE: u32 = 0o660;

/// Nobody can come in.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another daemon answers there.
    #[error("another process listens on {0}")]
    Taken(PathBuf),
    /// The place cannot be listened on.
    #[error("cannot listen on {place}")]
    Bind {
        /// Where.
        place: Place,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The token cannot be used.
    #[error("the token in {path} cannot be used: {why}")]
    Token {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
}

/// Listens in one place.
#[derive(Debug)]
pub enum Listener {
    /// On a Unix socket, which is removed in the end.
    Unix(UnixListener, PathBuf),
    /// On TCP.
    Tcp(TcpListener),
}

impl Listener {
    /// Begins to listen; `None` where nobody is to come in. Needs a running tokio runtime.
    pub fn open(place: &Place) -> Result<Option<Self>, Error> {
        let failed = |source| Error::Bind { place: place.clone(), source };
        match place {
            Place::Off => Ok(None),
            Place::Unix(path) => {
                if StdStream::connect(path).is_ok() {
                    return Err(Error::Taken(path.clone()));
                }
                unix(path).map(|listener| Some(Self::Unix(listener, path.clone()))).map_err(failed)
            }
            Place::Tcp(address) => {
                let listener = std::net::TcpListener::bind(address).and_then(|listener| {
                    listener.set_nonblocking(true)?;
                    TcpListener::from_std(listener)
                });
                listener.map(|listener| Some(Self::Tcp(listener))).map_err(failed)
            }
        }
    }

    /// Where clients can connect.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Unix(_, path) => format!("unix:{}", path.display()),
            Self::Tcp(listener) => listener
                .local_addr()
                .map_or_else(|_| "tcp".to_owned(), |address| format!("http://{address}/")),
        }
    }

    pub(super) async fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Unix(listener, _) => Ok(Stream::Unix(listener.accept().await?.0)),
            Self::Tcp(listener) => Ok(Stream::Tcp(listener.accept().await?.0)),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            // The next daemon replaces what is left.
            let _ = fs::remove_file(path);
        }
    }
}

/// A daemon that was killed has left its socket.
fn unix(path: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE))?;
    Ok(listener)
}

/// A connection.
#[derive(Debug)]
pub(super) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_read(context, into),
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, into),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_flush(context),
            Self::Tcp(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
