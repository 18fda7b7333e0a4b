//! The child: opens files until jjleak closes the socket.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};

use super::client;
use super::message::Request;

/// First argument that makes jjleak run as this process.
pub const VERB: &str = "open-files";

/// Maximum size of a request: a kind, and a path of the most bytes that the kernel takes.
const MAX_REQUEST_BYTES: usize = 1 + nix::libc::PATH_MAX as usize;

/// Answers the requests that come through stdin, a socket. Returns true if the work is done.
#[must_use]
pub fn run() -> bool {
    let stdin = io::stdin();
    loop {
        match answer(stdin.as_fd().as_raw_fd()) {
            Ok(true) => {}
            Ok(false) => return true,
            Err(_) => return false,
        }
    }
}

/// Answers a request; `false` if there will be no more.
fn answer(socket: RawFd) -> io::Result<bool> {
    let mut bytes = [0; MAX_REQUEST_BYTES];
    let (length, descriptor) = receive(socket, &mut bytes)?;
    let Some((kind, path)) = bytes[..length].split_first() else { return Ok(false) };
    let opened = match Request::from_parts(*kind, path, descriptor.as_ref()) {
        Some(request) => request.open(),
        None => Err(io::ErrorKind::InvalidInput.into()),
    };
    client::send_reply(socket, opened)?;
    Ok(true)
}

/// Receives a message and its descriptor.
pub(super) fn receive(socket: RawFd, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut control = nix::cmsg_space!(RawFd);
    let mut into = [IoSliceMut::new(bytes)];
    let message = recvmsg::<()>(socket, &mut into, Some(&mut control), MsgFlags::MSG_CMSG_CLOEXEC)?;
    let mut descriptor = None;
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(received) = part {
            for number in received {
                // SAFETY: the kernel has just made this descriptor, and nothing else has it.
                descriptor = Some(unsafe { OwnedFd::from_raw_fd(number) });
            }
        }
    }
    Ok((message.bytes, descriptor))
}

/// A received file.
pub(super) fn file(descriptor: Option<OwnedFd>) -> io::Result<File> {
    descriptor.map(File::from).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
