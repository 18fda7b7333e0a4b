//! jjleak itself, from the command line.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::AtWork;
use crate::Result;

pub(crate) struct Jjleak(Child);

impl Jjleak {
    /// Counts allocations. Returns when it does.
    pub(crate) fn attach(pid: u32, options: &[&str]) -> Result<Self> {
        Self::run(&[], pid, options)
    }

    /// The same with a subcommand.
    pub(crate) fn run(command: &[&str], pid: u32, options: &[&str]) -> Result<Self> {
        let mut child = Command::new(env!("CARGO_BIN_EXE_jjleak"))
            .args(command)
            .args(["-p", &pid.to_string(), "--out", "/dev/null", "--format", "json"])
            .args(options)
            .arg("3600")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let stderr = BufReader::new(child.stderr.take().ok_or("no stderr")?);
        let jjleak = Self(child);
        let mut said = Vec::new();
        let mut lines = stderr.lines();
        for line in lines.by_ref() {
            let line = line?;
            if line.contains("attached to") {
                // A full pipe would block it.
                std::thread::spawn(move || lines.for_each(drop));
                return Ok(jjleak);
            }
            said.push(line);
        }
        Err(said.join("; ").into())
    }
}

impl AtWork for Jjleak {}

impl Drop for Jjleak {
    fn drop(&mut self) {
        // Its probes are removed with it; no report is needed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
