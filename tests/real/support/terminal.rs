//! A terminal that a test looks at and types into: tmux.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use super::bounded::{self, LONG, SOON};
use super::jjleak::{PROGRAM, names_in};

/// No line of tmux's own.
const CONFIGURATION: &str = "set -g status off\n";

/// A terminal in which a program runs. It ends with this value.
pub(crate) struct Terminal {
    /// Where the program runs; the server's socket is in a folder of its own.
    folder: TempDir,
    server: TempDir,
}

impl Terminal {
    /// Runs jjleak with these arguments, and then says how it has ended and in which state the terminal is.
    pub(crate) fn run(arguments: &str, environment: &[(&str, &str)]) -> Self {
        let variables: Vec<_> = environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let command =
            format!("{} {PROGRAM} {arguments}; echo status=$?; stty -a; read keep", variables.join(" "));
        Self::open(&command)
    }

    /// Runs jjleak with these arguments where nobody is told that the terminal is gone. What it has to say goes to a file.
    pub(crate) fn run_ignoring_hangups(arguments: &str, said: &Path) -> Self {
        Self::open(&format!("trap '' HUP; {PROGRAM} {arguments} 2> {}; read keep", said.display()))
    }

    /// Runs jjleak with these arguments in a shell that has jobs, and then says the same.
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

    /// Types keys, by the names that tmux has for them.
    pub(crate) fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    /// Types a text.
    pub(crate) fn type_in(&self, text: &str) {
        self.tmux(&["send-keys", "-l", text]);
    }

    /// What is on the screen.
    pub(crate) fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// What is on the screen, with its colours.
    pub(crate) fn colored_screen(&self) -> String {
        self.tmux(&["capture-pane", "-p", "-e"])
    }

    /// Waits until the screen shows this.
    pub(crate) fn until(&self, what: &str) -> String {
        self.until_so(what, |screen| screen.contains(what))
    }

    /// The same of what takes work that grows with everything else that runs on the machine.
    pub(crate) fn until_at_last(&self, what: &str) -> String {
        self.until_within(LONG, what, |screen| screen.contains(what))
    }

    /// Waits until the screen is as it should be.
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

    /// Gives the terminal another size.
    pub(crate) fn resize(&self, width: u32, height: u32) {
        let (width, height) = (width.to_string(), height.to_string());
        self.tmux(&["resize-window", "-x", &width, "-y", &height]);
    }

    /// Waits until jjleak has ended with this status, and fails unless the terminal is as it was before.
    pub(crate) fn assert_ended(&self, status: i32) -> String {
        // The last word of stty: before it, the screen shows a part of the state only.
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

    /// Names of the files in the folder it runs in.
    pub(crate) fn files(&self) -> Vec<String> {
        names_in(self.folder.path())
    }

    /// A file in the folder it runs in.
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

/// Asks the server that has its socket in this folder.
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
