//! An idle process, for tests.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use regex::Regex;

use crate::daemon::config::{Config, Pattern};
use crate::processes::Pid;

/// Killed when dropped.
pub(in crate::daemon) struct Cat(Child);

impl Cat {
    pub(in crate::daemon) fn start() -> Self {
        Self::answering(&mut Command::new("cat"))
    }

    /// Starts a program that echoes its input, and waits for its first echo.
    pub(in crate::daemon) fn answering(command: &mut Command) -> Self {
        let mut cat = Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
        cat.echo("x\n");
        cat
    }

    /// Sends a text, and waits until it is echoed.
    pub(in crate::daemon) fn echo(&mut self, text: &str) {
        self.send(text);
        self.0.stdout.as_mut().unwrap().read_exact(&mut vec![0; text.len()]).unwrap();
    }

    pub(in crate::daemon) fn send(&mut self, text: &str) {
        self.0.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    pub(in crate::daemon) fn pid(&self) -> Pid {
        Pid::new(self.0.id()).unwrap()
    }
}

impl Drop for Cat {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A configuration that watches `cat` only.
pub(in crate::daemon) fn cats() -> Config {
    let mut config = Config::default();
    config.watch.names = vec![Pattern(Regex::new("^cat$").unwrap())];
    config.watch.jvms = false;
    config
}
