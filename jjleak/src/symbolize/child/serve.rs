//! The child: answers requests until jjleak closes the socket, or has none for a while.

use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use nix::unistd::alarm;

use super::files::{Files, Parts};
use super::protocol::{self, Reply, Request};
use super::sandbox;

/// First argument that makes jjleak run as this process.
pub const VERB: &str = "read-symbols";

/// Seconds after which a request ends it. jjleak kills it before, as long as there is a jjleak.
const LIMIT_S: u32 = 60;

/// Answers the requests that come through stdin, a socket. Returns true if the work is done.
#[must_use]
pub fn run() -> bool {
    let confined = sandbox::enter();
    let Ok(socket) = io::stdin().as_fd().try_clone_to_owned() else { return false };
    let mut socket = UnixStream::from(socket);
    let first = match &confined {
        Ok(()) => Reply::Ready,
        Err(error) => Reply::Refused(error.to_string()),
    };
    let answered = reply(&mut socket, &first);
    confined.is_ok() && answered.is_ok() && answer_all(&mut socket, &mut Files::new(sandbox::FOLDER)).is_ok()
}

fn answer_all(socket: &mut UnixStream, files: &mut Files) -> io::Result<()> {
    loop {
        let (request, descriptors) = match protocol::receive(socket) {
            Ok(Some(received)) => received,
            Ok(None) => return Ok(()),
            // The socket's time limit is that of an idle child.
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        alarm::set(LIMIT_S);
        if let Request::Open { file, has_debug_file, has_supplement, with_debug_info } = request {
            files.open(file, parts(descriptors, has_debug_file, has_supplement, with_debug_info)?);
        } else if request == Request::Forget {
            files.forget();
        } else if let Some(answer) = files.reply(&request) {
            reply(socket, &answer)?;
        }
        alarm::cancel();
    }
}

fn parts(
    descriptors: Vec<OwnedFd>,
    has_debug_file: bool,
    has_supplement: bool,
    with_debug_info: bool,
) -> io::Result<Parts> {
    let mut descriptors = descriptors.into_iter();
    let file = descriptors.next().ok_or_else(|| io::Error::from(ErrorKind::InvalidData))?;
    let mut next = |is_there: bool| if is_there { descriptors.next() } else { None };
    let (debug_file, supplement) = (next(has_debug_file), next(has_supplement));
    Ok(Parts { file, debug_file, supplement, with_debug_info })
}

fn reply(socket: &mut UnixStream, reply: &Reply) -> io::Result<()> {
    socket.write_all(&protocol::encode(reply)?)
}
