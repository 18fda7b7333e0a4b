//! Process starts, from the kernel's process events (`CN_PROC`, the kernel's `include/uapi/linux/cn_proc.h`).
//!
//! Events cause no wakeup: they wait in the socket until they are taken. An overflow of the socket's buffer is reported.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{MsgFlags, NetlinkAddr, SockFlag, bind, recv, send, setsockopt, sockopt};

use super::Pid;

/// `CN_IDX_PROC` and `CN_VAL_PROC`.
const PROC: u32 = 1;
/// `PROC_CN_MCAST_LISTEN`.
const LISTEN: u32 = 1;
/// `PROC_EVENT_EXEC`.
const EXEC: u32 = 2;
/// `NLMSG_DONE`.
const DONE: u16 = 3;
/// Sizes of a `struct nlmsghdr`, and of a `struct cn_msg` without its payload.
const NETLINK_HEADER: usize = 16;
const CONNECTOR_HEADER: usize = 20;
/// Offsets in a `struct proc_event`: the kind of event, and the process (`event_data.exec.process_tgid`).
const WHAT: usize = NETLINK_HEADER + CONNECTOR_HEADER;
const TGID: usize = WHAT + 20;
/// Socket buffer size: the kernel counts about 800 bytes per event, so it holds 10,000 events.
const BUFFER: usize = 8 << 20;
/// Above the size of any event.
const LARGEST: usize = 512;

/// Listener for the kernel's process events.
#[derive(Debug)]
pub struct Starts(OwnedFd);

/// Events since the last call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Started {
    /// Processes that have executed a program.
    pub pids: BTreeSet<Pid>,
    /// True if further events were lost.
    pub missed: bool,
}

impl Starts {
    /// Begins to listen. Requires the initial network, PID and user namespaces, and before Linux 6.6 `CAP_NET_ADMIN`; since then,
    /// that capability only allows a larger buffer.
    pub fn listen() -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = connector(flags)?;
        // Without the capability, the buffer is smaller.
        if setsockopt(&socket, sockopt::RcvBufForce, &BUFFER).is_err() {
            let _ = setsockopt(&socket, sockopt::RcvBuf, &BUFFER);
        }
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, PROC))?;
        // Kernels before 6.6 do not support the second word, and also report forks and exits.
        for body in [&[LISTEN, EXEC][..], &[LISTEN]] {
            match send(socket.as_raw_fd(), &request(body), MsgFlags::empty()) {
                Ok(_) => return Ok(Self(socket)),
                Err(Errno::EINVAL) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::Error::from(Errno::EINVAL))
    }

    /// Takes the pending events.
    #[must_use]
    pub fn take(&self) -> Started {
        let mut started = Started::default();
        let mut message = [0; LARGEST];
        loop {
            match recv(self.0.as_raw_fd(), &mut message, MsgFlags::empty()) {
                Ok(length) => started.pids.extend(message.get(..length).and_then(started_by)),
                Err(Errno::EINTR) => {}
                Err(Errno::ENOBUFS) => started.missed = true,
                Err(Errno::EAGAIN) => return started,
                Err(_) => {
                    started.missed = true;
                    return started;
                }
            }
        }
    }
}

/// Opens a `NETLINK_CONNECTOR` socket; nix has no name for this protocol.
fn connector(flags: SockFlag) -> io::Result<OwnedFd> {
    // SAFETY: all arguments are integers; the result is -1 or a new descriptor that nothing else owns.
    unsafe {
        let descriptor =
            libc::socket(libc::AF_NETLINK, libc::SOCK_DGRAM | flags.bits(), libc::NETLINK_CONNECTOR);
        if descriptor < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(descriptor)) }
    }
}

/// Subscription message.
fn request(body: &[u32]) -> Vec<u8> {
    let carried = size_of_val(body);
    let total = u32::try_from(NETLINK_HEADER + CONNECTOR_HEADER + carried).unwrap_or_default();
    let mut message = Vec::new();
    message.extend(total.to_ne_bytes());
    message.extend(DONE.to_ne_bytes());
    // Flags, sequence number and port.
    message.extend([0; 10]);
    message.extend(PROC.to_ne_bytes());
    message.extend(PROC.to_ne_bytes());
    // Sequence and acknowledgement numbers.
    message.extend([0; 8]);
    message.extend(u16::try_from(carried).unwrap_or_default().to_ne_bytes());
    message.extend([0; 2]);
    message.extend(body.iter().flat_map(|word| word.to_ne_bytes()));
    message
}

/// The process that has executed a program, if the message is such an event.
fn started_by(message: &[u8]) -> Option<Pid> {
    let word = |at: usize| Some(u32::from_ne_bytes(message.get(at..at + 4)?.try_into().ok()?));
    if word(WHAT)? == EXEC { Pid::new(word(TGID)?) } else { None }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_program_that_starts_is_reported() {
        // Without permission of the kernel or the user there is nothing to test: jjleak scans all processes instead.
        let Ok(starts) = Starts::listen() else { return };
        let mut child = Command::new("true").spawn().unwrap();
        let pid = Pid::new(child.id()).unwrap();
        child.wait().unwrap();
        assert!(starts.take().pids.contains(&pid));
        assert!(!starts.take().pids.contains(&pid));
    }

    #[test]
    fn messages_that_are_cut_are_ignored() {
        for length in 0..TGID {
            assert_eq!(started_by(&vec![2; length]), None);
        }
    }
}
