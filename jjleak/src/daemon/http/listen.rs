//! Listening sockets.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::daemon::config::ListenAddress;

/// Owner and group may connect.
const SOCKET_MODE: u32 = 0o660;

/// Reasons why the server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process listens there.
    #[error("another process listens on {0}")]
    Taken(PathBuf),
    /// The address cannot be bound.
    #[error("cannot listen on {place}")]
    Bind {
        /// The address.
        place: ListenAddress,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The token file is unusable.
    #[error("cannot use the token in {path}: {why}")]
    Token {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
}

/// A listening socket.
#[derive(Debug)]
pub enum Listener {
    /// A Unix socket, removed when dropped.
    Unix(UnixListener, PathBuf),
    /// A TCP socket.
    Tcp(TcpListener),
}

impl Listener {
    /// Starts to listen; `None` if the server is off. Needs a running tokio runtime.
    pub fn open(place: &ListenAddress) -> Result<Option<Self>, Error> {
        let failed = |source| Error::Bind { place: place.clone(), source };
        match place {
            ListenAddress::Off => Ok(None),
            ListenAddress::Unix(path) => {
                if StdStream::connect(path).is_ok() {
                    return Err(Error::Taken(path.clone()));
                }
                unix(path).map(|listener| Some(Self::Unix(listener, path.clone()))).map_err(failed)
            }
            ListenAddress::Tcp(address) => {
                let listener = std::net::TcpListener::bind(address).and_then(|listener| {
                    listener.set_nonblocking(true)?;
                    TcpListener::from_std(listener)
                });
                listener.map(|listener| Some(Self::Tcp(listener))).map_err(failed)
            }
        }
    }

    /// Address to which clients connect.
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
            // If this fails, the next daemon replaces the socket.
            let _ = fs::remove_file(path);
        }
    }
}

/// Replaces the socket of a killed daemon. Nothing but sockets is removed, because the path may be wrong.
fn unix(path: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    match fs::symlink_metadata(path) {
        Ok(there) if there.file_type().is_socket() => fs::remove_file(path)?,
        Ok(_) => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file there is not a socket"));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_leftover_socket_is_replaced_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let open = || Listener::open(&ListenAddress::Unix(path.clone()));
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let listener = open().unwrap();
        assert!(matches!(open(), Err(Error::Taken(_))));
        drop(listener);
        assert!(!path.exists());
        fs::write(&path, "somebody's").unwrap();
        assert!(matches!(open(), Err(Error::Bind { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"somebody's");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(folder.path().join("elsewhere"), &path).unwrap();
        assert!(open().is_err() && path.is_symlink());
    }
}
