//! Root privileges, for installing packages and loading BPF programs.

use std::{
    ffi::OsStr,
    io::{IsTerminal, stdin},
    process::Command,
};

use anyhow::{Result, bail};
use nix::unistd::Uid;

use crate::command::{announce, on_path, succeeds};

/// Way to run programs as root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Root {
    /// xtask runs as root already.
    Already,
    /// Through `sudo`, which has authenticated this user.
    Sudo,
}

impl Root {
    /// Finds a way to run as root for `purpose`, which completes "root is needed to ...".
    pub(crate) fn obtain(purpose: &str) -> Result<Self> {
        if Uid::effective().is_root() {
            return Ok(Self::Already);
        }
        if on_path("sudo").is_none() {
            bail!("root is needed to {purpose}, and sudo is not installed: run `cargo xtask` as root");
        }
        announce(&format!("root is needed to {purpose}: using sudo"));
        if succeeds(Command::new("sudo").args(["-n", "true"])) {
            return Ok(Self::Sudo);
        }
        // Ask for the password once, right after stating the reason.
        if stdin().is_terminal()
            && Command::new("sudo").arg("-v").status().is_ok_and(|status| status.success())
        {
            return Ok(Self::Sudo);
        }
        bail!(
            "root is needed to {purpose}, and sudo lets this user in only with a password: \
             run `sudo -v` first, or `cargo xtask` as root"
        );
    }

    /// Command that runs `program` as root, with `variables` in its environment.
    pub(crate) fn command(self, program: impl AsRef<OsStr>, variables: &[(&str, &str)]) -> Command {
        match self {
            Self::Already => {
                let mut command = Command::new(program);
                command.envs(variables.iter().copied());
                command
            }
            Self::Sudo => {
                let mut command = Command::new("sudo");
                command.arg("--");
                if !variables.is_empty() {
                    // sudo resets the environment; env(1) sets what the program needs.
                    command.arg("env");
                    command.args(variables.iter().map(|(name, value)| format!("{name}={value}")));
                }
                command.arg(program);
                command
            }
        }
    }

    /// Prefix with which cargo runs a test or benchmark binary as root.
    pub(crate) fn runner(self) -> Option<&'static str> {
        match self {
            Self::Already => None,
            // Tests are configured by environment variables.
            Self::Sudo => Some("sudo -E"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::shown;

    #[test]
    fn sudo_hands_variables_over_through_env() {
        let command = Root::Sudo.command("apt-get", &[("DEBIAN_FRONTEND", "noninteractive")]);
        assert_eq!(shown(&command), "sudo -- env DEBIAN_FRONTEND=noninteractive apt-get");
    }

    #[test]
    fn root_runs_programs_directly() {
        assert_eq!(shown(&Root::Already.command("apt-get", &[("A", "b")])), "apt-get");
        assert_eq!(Root::Already.runner(), None);
    }
}
