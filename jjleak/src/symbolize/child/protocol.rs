//! Messages between jjleak and its child. Neither side trusts a length that it has received: memory is taken as bytes arrive.
//!
//! A message is its length in four bytes, and its content as postcard encodes it.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::symbolize::tail_calls::Function;

/// Maximum number of places in a request. The reply to one of honest code has some 100 KiB.
pub(in crate::symbolize) const MAX_PLACES: usize = 512;
/// Maximum length of a request: places take at most 11 bytes each.
const MAX_REQUEST_BYTES: usize = 16 << 10;
/// Maximum length of a reply. A child puts fewer symbols into one than it was asked for if they are longer.
const MAX_REPLY_BYTES: usize = 8 << 20;
/// Number of bytes taken at once for a message that is longer.
const PIECE_BYTES: usize = 64 << 10;
/// Number of bytes before the content.
const PREFIX_BYTES: usize = size_of::<u32>();
/// Maximum number of descriptors that come with a request: a file, its debug file, and the file that debug files share.
const MAX_DESCRIPTORS: usize = 3;

/// Number of a file that the child has been sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileNumber(pub u32);

/// Message to the child.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Gives a file this number. Its descriptors come with the message. No reply.
    Open {
        /// The number, one that no file has.
        file: FileNumber,
        /// True if the second descriptor is its debug file.
        has_debug_file: bool,
        /// True if the last descriptor is the file that `.gnu_debugaltlink` names.
        has_supplement: bool,
        /// False if its symbol tables alone are to be read.
        with_debug_info: bool,
    },
    /// Drops what it knows of all files; they stay open. No reply.
    Forget,
    /// Asks for symbols.
    Symbols(FileNumber, Vec<Place>),
    /// Asks for the function with this entry address.
    Function(FileNumber, u64),
}

/// An address in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The address.
    pub address: u64,
    /// True for the last byte of a call, false for an executing instruction.
    pub is_call: bool,
}

/// Message from the child.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// It has given up its privileges, and takes requests.
    Ready,
    /// It could not give up its privileges, for this reason, and ends.
    Refused(String),
    /// The symbols of the first places that it was asked for: at least one, fewer than all if they are long.
    Symbols(Vec<Option<Symbol>>),
    /// The function.
    Function(Option<Function>),
}

/// Symbol of an address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Symbol {
    /// Address of the function in the file.
    pub start: u64,
    /// The function, preceded by functions inlined into it, innermost first.
    pub functions: Vec<Named>,
}

/// Name and place of a function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// Name, demangled.
    pub name: String,
    /// Source file; empty if unknown.
    pub file: String,
    /// Line; 0 if unknown.
    pub line: u32,
}

impl Symbol {
    /// Number of bytes of its text.
    pub(super) fn text_bytes(&self) -> usize {
        self.functions.iter().map(|function| function.name.len() + function.file.len()).sum()
    }
}

/// A message as it is sent.
pub(super) fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = postcard::to_extend(message, vec![0; PREFIX_BYTES]).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len() - PREFIX_BYTES).map_err(io::Error::other)?;
    bytes[..PREFIX_BYTES].copy_from_slice(&length.to_le_bytes());
    Ok(bytes)
}

/// A message from its content.
pub fn decode<T: DeserializeOwned>(content: &[u8]) -> io::Result<T> {
    match postcard::take_from_bytes(content) {
        Ok((message, [])) => Ok(message),
        Ok(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "a message has bytes behind its end")),
        Err(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error)),
    }
}

/// Reads a reply.
pub(super) fn read_reply(from: &mut impl Read) -> io::Result<Reply> {
    let mut prefix = [0; PREFIX_BYTES];
    from.read_exact(&mut prefix)?;
    read_content(prefix, from, MAX_REPLY_BYTES)
}

fn read_content<T: DeserializeOwned>(
    prefix: [u8; PREFIX_BYTES],
    from: &mut impl Read,
    most: usize,
) -> io::Result<T> {
    let length = usize::try_from(u32::from_le_bytes(prefix)).unwrap_or(usize::MAX);
    if length > most {
        let why = format!("a message of {length} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    let mut content = Vec::new();
    while content.len() < length {
        let known = content.len();
        content.resize(length.min(known + PIECE_BYTES), 0);
        from.read_exact(&mut content[known..])?;
    }
    decode(&content)
}

/// Sends a request with the descriptors of files.
pub(super) fn send(to: &UnixStream, request: &Request, files: &[&File]) -> io::Result<()> {
    let bytes = encode(request)?;
    let descriptors: Vec<RawFd> = files.iter().map(|file| file.as_raw_fd()).collect();
    let rights = [ControlMessage::ScmRights(&descriptors)];
    let rights = if descriptors.is_empty() { &[][..] } else { &rights };
    let sent = sendmsg::<()>(to.as_raw_fd(), &[IoSlice::new(&bytes)], rights, MsgFlags::MSG_NOSIGNAL, None)?;
    // The child has read all earlier requests when it replied, so this one fits the socket's buffer.
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Receives a request and its descriptors; `None` if there will be no more.
pub(super) fn receive(from: &mut UnixStream) -> io::Result<Option<(Request, Vec<OwnedFd>)>> {
    let mut prefix = [0; PREFIX_BYTES];
    let mut control = nix::cmsg_space!([RawFd; MAX_DESCRIPTORS]);
    let mut descriptors = Vec::new();
    let (received, is_cut) = {
        let mut into = [IoSliceMut::new(&mut prefix)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = recvmsg::<()>(from.as_raw_fd(), &mut into, Some(&mut control), flags)?;
        for part in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(received) = part {
                // SAFETY: the kernel has just made these descriptors, and nothing else has them.
                descriptors.extend(received.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        (message.bytes, message.flags.contains(MsgFlags::MSG_CTRUNC))
    };
    if received == 0 {
        return Ok(None);
    }
    if is_cut {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a request has too many descriptors"));
    }
    from.read_exact(&mut prefix[received..])?;
    Ok(Some((read_content(prefix, from, MAX_REQUEST_BYTES)?, descriptors)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(number: usize) -> Vec<Place> {
        vec![Place { address: u64::MAX, is_call: true }; number]
    }

    #[test]
    fn requests_arrive_with_their_files() {
        let (here, mut there) = UnixStream::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        let open = Request::Open {
            file: FileNumber(7),
            has_debug_file: true,
            has_supplement: false,
            with_debug_info: true,
        };
        let ask = Request::Symbols(FileNumber(7), places(MAX_PLACES));

        send(&here, &open, &[&file, &file]).unwrap();
        send(&here, &ask, &[]).unwrap();
        drop(here);

        let (request, descriptors) = receive(&mut there).unwrap().unwrap();
        assert_eq!((request, descriptors.len()), (open, 2));
        let (request, descriptors) = receive(&mut there).unwrap().unwrap();
        assert_eq!((request, descriptors.len()), (ask, 0));
        assert!(receive(&mut there).unwrap().is_none());
    }

    #[test]
    fn a_length_alone_takes_no_memory() {
        let mut message = u32::try_from(MAX_REPLY_BYTES).unwrap().to_le_bytes().to_vec();
        message.push(0);
        assert_eq!(read_reply(&mut &*message).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let too_long = u32::MAX.to_le_bytes();
        assert_eq!(read_reply(&mut &too_long[..]).unwrap_err().kind(), io::ErrorKind::InvalidData);
        // A list of 2^64 - 1 symbols.
        let many = [&[2][..], &[0xff; 9], &[1]].concat();
        assert!(decode::<Reply>(&many).is_err());
    }

    #[test]
    fn a_message_has_nothing_behind_its_end() {
        let bytes = encode(&Reply::Ready).unwrap();
        assert_eq!(decode::<Reply>(&bytes[PREFIX_BYTES..]).unwrap(), Reply::Ready);
        assert!(decode::<Reply>(&[&bytes[PREFIX_BYTES..], &[0]].concat()).is_err());
    }
}
