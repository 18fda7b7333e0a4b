//! Whether a JVM may be asked, and whether it may be sent the signal that has it listen.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::jvm::{Description, Memory, ProcessMemory};
use crate::processes::{Module, Pid};

/// The first version that can write a perf map.
const FIRST_VERSION: u64 = 17;

/// SIGQUIT's bit in the masks of `/proc/PID/status`.
const SIGQUIT_BIT: u64 = 1 << (3 - 1);

/// How a JVM may be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Through the socket that it listens on, and if it does not yet, it may be sent SIGQUIT.
    SocketOrSignal,
    /// Only through a socket that is there; why no signal may be sent.
    Socket(Unfit),
}

/// What speaks against asking a JVM, or against sending it a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unfit {
    /// It was told not to listen.
    #[error("it runs with -XX:+DisableAttachMechanism")]
    Disabled,
    /// It does not know how to.
    #[error("JDK {0} writes no perf map: JDK 17 and later do")]
    Version(u64),
    /// It was told to leave signals alone.
    #[error("it runs with -Xrs, and SIGQUIT would end it")]
    ReducedSignals,
    /// It has not come so far yet, or has left it to the system what happens.
    #[error("it does not catch SIGQUIT, which would end it")]
    NotCaught,
    /// Nobody knows how it was started.
    #[error("its flags cannot be read, and SIGQUIT could end it")]
    UnknownFlags,
}

/// How a JVM that describes itself like this may be asked. `None`: it does not describe itself.
pub fn way<M: Memory>(description: Option<&Description<M>>) -> Result<Way, Unfit> {
    let Some(description) = description else { return Ok(Way::Socket(Unfit::UnknownFlags)) };
    let version = description.version();
    match (description.is_on("DisableAttachMechanism"), description.is_on("ReduceSignalUsage")) {
        (Some(true), _) => Err(Unfit::Disabled),
        _ if (1..FIRST_VERSION).contains(&version) => Err(Unfit::Version(version)),
        (_, Some(true)) => Ok(Way::Socket(Unfit::ReducedSignals)),
        (Some(false), Some(false)) => Ok(Way::SocketOrSignal),
        _ => Ok(Way::Socket(Unfit::UnknownFlags)),
    }
}

/// How the JVM in a process may be asked, whose library is mapped `bias` bytes above the addresses in it.
pub fn way_of(pid: Pid, library: &Module, bias: u64) -> Result<Way, Unfit> {
    // Before its flags: a JVM that catches the signal has read its options.
    let catches = File::open(pid.proc_file("status")).and_then(|status| catches_sigquit(&status));
    let description = ProcessMemory::open(pid)
        .and_then(|memory| Ok((memory, library.read()?)))
        .ok()
        .and_then(|(memory, library)| Description::open(memory, &library, bias).ok());
    match way(description.as_ref())? {
        Way::SocketOrSignal if !catches.unwrap_or_default() => Ok(Way::Socket(Unfit::NotCaught)),
        way => Ok(way),
    }
}

/// Whether a process catches SIGQUIT now, which would end it otherwise. `status` is its `/proc/PID/status`.
pub(super) fn catches_sigquit(status: &File) -> io::Result<bool> {
    // Larger than it ever is.
    let mut text = [0; 16 << 10];
    let length = status.read_at(&mut text, 0)?;
    let text = String::from_utf8_lossy(text.get(..length).unwrap_or_default());
    Ok(caught(&text).is_some_and(|mask| mask & SIGQUIT_BIT != 0))
}

fn caught(status: &str) -> Option<u64> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sigquit_is_told_from_other_signals() {
        let catches =
            |mask: &str| caught(&format!("Name:\tjava\nSigCgt:\t{mask}\n")).unwrap() & SIGQUIT_BIT != 0;
        // A JVM of JDK 17 as it is, and with -Xrs.
        assert!(catches("0000000101005ccd"));
        assert!(!catches("0000000101001cc8"));
        assert_eq!(caught("Name:\tjava\n"), None);
    }
}
