//! Resident memory of a process, for the cost of one system call.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::unistd::{SysconfVar, sysconf};

use super::Pid;

/// An open `/proc/PID/statm`. It stays bound to this process even if its PID is reused.
#[derive(Debug)]
pub struct ResidentMemory {
    file: File,
    page: u64,
}

/// Result of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resident {
    /// Resident bytes, mapped files included.
    Bytes(u64),
    /// The process has ended.
    Ended,
}

/// Maximum length of the line: seven numbers of at most 20 digits.
const LINE: usize = 160;

impl ResidentMemory {
    /// Opens the file of a process.
    pub fn open(pid: Pid) -> io::Result<Self> {
        let page = sysconf(SysconfVar::PAGE_SIZE)?.and_then(|page| u64::try_from(page).ok()).unwrap_or(4096);
        Ok(Self { file: File::open(pid.proc_file("statm"))?, page })
    }

    /// Reads the current size.
    pub fn read(&self) -> io::Result<Resident> {
        let mut line = [0; LINE];
        let length = match self.file.read_at(&mut line, 0) {
            Ok(length) => length,
            Err(error) if error.raw_os_error() == Some(Errno::ESRCH as i32) => return Ok(Resident::Ended),
            Err(error) => return Err(error),
        };
        let line = String::from_utf8_lossy(&line[..length]);
        let pages = line.split_ascii_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
        match pages {
            None => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("statm has an unexpected form: {line:?}"),
            )),
            // The process has released its memory, but not yet its PID.
            Some(0) => Ok(Resident::Ended),
            Some(pages) => Ok(Resident::Bytes(pages.saturating_mul(self.page))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_own_process_has_memory_and_an_ended_one_has_ended() {
        let own = ResidentMemory::open(Pid::new(std::process::id()).unwrap()).unwrap();
        assert!(matches!(own.read().unwrap(), Resident::Bytes(bytes) if bytes > 100_000));
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let memory = ResidentMemory::open(Pid::new(child.id()).unwrap()).unwrap();
        assert!(matches!(memory.read().unwrap(), Resident::Bytes(_)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(memory.read().unwrap(), Resident::Ended);
    }
}
