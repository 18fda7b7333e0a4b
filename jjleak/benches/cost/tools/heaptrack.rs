//! heaptrack: a preloaded library, and a program that interprets its output.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, killpg};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};

use std::os::unix::process::CommandExt;

use super::AtWork;
use crate::Result;
use crate::subjects::{Environment, scratch};

const LIBRARY: &str = "/usr/lib/heaptrack/libheaptrack_preload.so";
const INTERPRETER: &str = "/usr/lib/heaptrack/libexec/heaptrack_interpret";

/// The interpreter that heaptrack's script starts.
pub(crate) struct Heaptrack {
    interpreter: Child,
    pipe: PathBuf,
}

impl Heaptrack {
    pub(crate) fn start() -> Result<Self> {
        if !Path::new(LIBRARY).exists() || !Path::new(INTERPRETER).exists() {
            return Err(format!("{LIBRARY} or its interpreter is missing").into());
        }
        let pipe = scratch("heaptrack.pipe");
        let _ = std::fs::remove_file(&pipe);
        mkfifo(&pipe, Mode::S_IRUSR | Mode::S_IWUSR)?;
        let interpreter = Command::new("sh")
            .args(["-c", "\"$0\" < \"$1\" | zstd -q -c > /dev/null", INTERPRETER])
            .arg(&pipe)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { interpreter, pipe })
    }

    pub(crate) fn environment(&self) -> Environment {
        let pipe = self.pipe.display().to_string();
        vec![("LD_PRELOAD".to_owned(), LIBRARY.to_owned()), ("DUMP_HEAPTRACK_OUTPUT".to_owned(), pipe)]
    }
}

impl AtWork for Heaptrack {}

impl Drop for Heaptrack {
    fn drop(&mut self) {
        // It exits with the program, but waits forever if that never opened the pipe.
        if let Ok(group) = i32::try_from(self.interpreter.id()) {
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        let _ = self.interpreter.wait();
        let _ = std::fs::remove_file(&self.pipe);
    }
}
