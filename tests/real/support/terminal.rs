//! A terminal that a test reads and types into: tmux.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use super::bounded::{self, LONG, SOON};
use super::jjleak::{PROGRAM, names_in};

/// Without tmux's own status line.
const CONFIGURATION: &str = "set -g status off\n";

/// A terminal in which a program runs. Ends when dropped.
pub(crate) struct Terminal {
    /// Folder in which the program runs; the server's socket is in a separate folder.
    folder: TempDir,
    server: TempDir,
}

impl Terminal {
    /// Runs jjleak with these arguments, and then prints its exit status and the state of the terminal.
    pub(crate) fn run(arguments: &str, environment: &[(&str, &str)]) -> Self {
        let variables: Vec<_> = environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let command =
            format!("{} {PROGRAM} {arguments}; echo status=$?; stty -a; read keep", variables.join(" "));
        Self::open(&command)
    }

    /// Runs jjleak with these arguments so that it is not notified when the terminal is gone. Its messages go to a file.
    pub(crate) fn run_ignoring_hangups(arguments: &str, said: &Path) -> Self {
        Self::open(&format!("trap '' HUP; {PROGRAM} {arguments} 2> {}; read keep", said.display()))
    }

    /// Runs jjleak with these arguments in a shell with job control, and then prints the same.
    pub(crate) fn run_as_job(arguments: &str) -> Self {
        let terminal = Self::open("env ENV= PS1='$ ' sh -i");
        terminal.type_in(&format!("{PROGRAM} {arguments}"));
        terminal.press(&["Enter"]);
        terminal
    }

    fn open(command: &str) -> Self {
        let terminal = Self { folder: tempfile::tempdir().unwrap(), server: tempfile::tempdir().unwrap() };
        fs::write(terminal.server.path().join("tmux.conf"), CONFIGURATION).unwrap();
        let folder = terminal.folder.path().to_str().unwrap();
        terminal.tmux(&["new-session", "-d", "-x", "80", "-y", "24", "-c", folder, command]);
        terminal
    }

    /// Presses keys, by tmux's names for them.
    pub(crate) fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    /// Types a text.
    pub(crate) fn type_in(&self, text: &str) {
        self.tmux(&["send-keys", "-l", text]);
    }

    /// The text on the screen.
    pub(crate) fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// The text on the screen, with its colours.
    pub(crate) fn colored_screen(&self) -> String {
        self.tmux(&["capture-pane", "-p", "-e"])
    }

    /// Waits until the screen shows this text.
    pub(crate) fn until(&self, what: &str) -> String {
        self.until_so(what, |screen| screen.contains(what))
    }

    /// The same with a longer limit, for work that grows with the load of the machine.
    pub(crate) fn until_at_last(&self, what: &str) -> String {
        self.until_within(LONG, what, |screen| screen.contains(what))
    }

    /// Waits until the screen meets a condition.
    pub(crate) fn until_so(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        self.until_within(SOON, what, is_so)
    }

    fn until_within(&self, limit: Duration, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        let mut screen = String::new();
        let is_seen = bounded::comes(limit, || {
            screen = self.screen();
            is_so(&screen)
        });
        assert!(is_seen, "{what} did not show within {limit:?}, but\n{screen}");
        screen
    }

    /// Resizes the terminal.
    pub(crate) fn resize(&self, width: u32, height: u32) {
        let (width, height) = (width.to_string(), height.to_string());
        self.tmux(&["resize-window", "-x", &width, "-y", &height]);
    }

    /// Waits until jjleak has ended with this status, and fails unless the terminal is restored.
    pub(crate) fn assert_ended(&self, status: i32) -> String {
        // The last word that stty prints: before it, the screen shows only a part of the state.
        let screen = self.until("extproc");
        assert!(screen.contains(&format!("status={status}\n")), "{screen}");
        let has = |mode: &str| screen.split_whitespace().any(|word| word == mode);
        assert!(["icanon", "echo", "isig", "opost"].into_iter().all(has), "not as before:\n{screen}");
        let format = "#{alternate_on} #{cursor_flag}";
        assert_eq!(self.tmux(&["display-message", "-p", format]).trim(), "0 1", "{screen}");
        screen
    }

    /// The PID of jjleak: the only child of the shell.
    pub(crate) fn program(&self) -> u32 {
        let shell = self.tmux(&["display-message", "-p", "#{pane_pid}"]);
        let shell = shell.trim();
        let children = fs::read_to_string(format!("/proc/{shell}/task/{shell}/children")).unwrap();
        children.trim().parse().unwrap_or_else(|_| panic!("not one child of {shell}: {children:?}"))
    }

    /// Names of the files in the program's folder.
    pub(crate) fn files(&self) -> Vec<String> {
        names_in(self.folder.path())
    }

    /// Path of a file in the program's folder.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        tmux(self.server.path(), arguments).unwrap_or_else(|error| panic!("tmux {arguments:?}: {error}"))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = tmux(self.server.path(), &["kill-server"]);
    }
}

/// Runs a command of the server that has its socket in this folder.
fn tmux(server: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new("tmux");
    command.arg("-u").arg("-S").arg(server.join("socket")).arg("-f").arg(server.join("tmux.conf"));
    let output = command.args(arguments).env_remove("TMUX").output().map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}
