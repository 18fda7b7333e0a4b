//! Decides whether a JVM may be asked something, and whether it may be sent SIGQUIT.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::Question;
use crate::jvm::{Description, Memory, ProcessMemory};
use crate::processes::{Module, Pid};

/// SIGQUIT's bit in the signal masks of `/proc/PID/status`.
const SIGQUIT_BIT: u64 = 1 << (3 - 1);

/// Permitted ways to reach a JVM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Its socket; SIGQUIT may be sent to create it.
    SocketOrSignal,
    /// An existing socket only, and the reason why SIGQUIT may not be sent.
    Socket(Unfit),
}

/// Reason against asking a JVM, or against sending it a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unfit {
    /// The attach mechanism is disabled.
    #[error("it runs with -XX:+DisableAttachMechanism")]
    Disabled,
    /// It may not be asked to load a library.
    #[error("it runs with -XX:-EnableDynamicAgentLoading, and loads no library on request")]
    LoadsNothing,
    /// The JDK is too old.
    #[error("JDK {version} has no {}: JDK {} and later have", question.command(), question.first_version())]
    Version {
        /// Its version.
        version: u64,
        /// The command that it lacks.
        question: Question,
    },
    /// Signal handling is disabled.
    #[error("it runs with -Xrs, and SIGQUIT would end it")]
    ReducedSignals,
    /// The handler is not installed yet, or SIGQUIT has its default action.
    #[error("it does not catch SIGQUIT, which would end it")]
    NotCaught,
    /// The flags are unknown.
    #[error("its flags cannot be read, and SIGQUIT could end it")]
    UnknownFlags,
}

/// Access to a JVM with this description; `None` is a JVM that does not describe itself.
pub fn access<M: Memory>(description: Option<&Description<M>>, question: Question) -> Result<Access, Unfit> {
    let Some(description) = description else { return Ok(Access::Socket(Unfit::UnknownFlags)) };
    let version = description.version();
    match (description.is_on("DisableAttachMechanism"), description.is_on("ReduceSignalUsage")) {
        (Some(true), _) => Err(Unfit::Disabled),
        _ if (1..question.first_version()).contains(&version) => Err(Unfit::Version { version, question }),
        _ if question == Question::LoadAgent
            && description.is_on("EnableDynamicAgentLoading") == Some(false) =>
        {
            Err(Unfit::LoadsNothing)
        }
        (_, Some(true)) => Ok(Access::Socket(Unfit::ReducedSignals)),
        (Some(false), Some(false)) => Ok(Access::SocketOrSignal),
        _ => Ok(Access::Socket(Unfit::UnknownFlags)),
    }
}

/// Access to the JVM in a process, by its library and load bias.
pub fn access_of(pid: Pid, library: &Module, bias: u64, question: Question) -> Result<Access, Unfit> {
    // Checked before the flags: a JVM that catches the signal has parsed its options.
    let catches = File::open(pid.proc_file("status")).and_then(|status| catches_sigquit(&status));
    let description = ProcessMemory::open(pid)
        .and_then(|memory| Ok((memory, library.content()?)))
        .ok()
        .and_then(|(memory, library)| Description::open(memory, &library, bias).ok());
    match access(description.as_ref(), question)? {
        Access::SocketOrSignal if !catches.unwrap_or_default() => Ok(Access::Socket(Unfit::NotCaught)),
        access => Ok(access),
    }
}

/// Returns whether a process catches SIGQUIT now, which would end it otherwise. `status` is its
/// `/proc/PID/status`.
pub(super) fn catches_sigquit(status: &File) -> io::Result<bool> {
    // Larger than the file ever is.
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
    fn sigquit_is_distinguished_from_other_signals() {
        let catches =
            |mask: &str| caught(&format!("Name:\tjava\nSigCgt:\t{mask}\n")).unwrap() & SIGQUIT_BIT != 0;
        // A JVM of JDK 17 with default options, and with -Xrs.
        assert!(catches("0000000101005ccd"));
        assert!(!catches("0000000101001cc8"));
        assert_eq!(caught("Name:\tjava\n"), None);
    }
}
