//! A process that does nothing, for tests.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use regex::Regex;

use crate::daemon::config::{Config, Pattern};
use crate::processes::Pid;

/// Ended when dropped.
pub(in crate::daemon) struct Cat(Child);

impl Cat {
    pub(in crate::daemon) fn start() -> Self {
        Self::answering(&mut Command::new("cat"))
    }

    /// A program that gives back what it is told, when it has done so once.
    pub(in crate::daemon) fn answering(command: &mut Command) -> Self {
        let mut cat = Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
        cat.tell("x\n");
        cat
    }

    /// Waits until it has given back as many bytes.
    pub(in crate::daemon) fn tell(&mut self, text: &str) {
        self.say(text);
        self.0.stdout.as_mut().unwrap().read_exact(&mut vec![0; text.len()]).unwrap();
    }

    pub(in crate::daemon) fn say(&mut self, text: &str) {
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

/// Watches cats, and nothing else.
pub(in crate::daemon) fn cats() -> Config {
    let mut config = Config::default();
    config.watch.names = vec![Pattern(Regex::new("^cat$").unwrap())];
    config.watch.jvms = false;
    config
}
