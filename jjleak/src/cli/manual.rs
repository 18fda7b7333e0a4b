//! Shell completions and man pages, from the definition of the command line.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap_complete::{Shell, generate};
use clap_mangen::Man;

use super::Failure;
use super::command_line::CommandLine;
use super::failure::OTHER;
use crate::store::PendingFile;

/// Print a script for shell completion of jjleak's arguments
///
/// For bash: jjleak completions bash > /usr/share/bash-completion/completions/jjleak
#[derive(Debug, clap::Args)]
pub(super) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Write man pages and completions for all shells into a folder, for packages
#[derive(Debug, clap::Args)]
pub(super) struct ManualArgs {
    /// Destination folder; must contain man/ and completions/
    folder: PathBuf,
}

/// Prints the completion script for a shell.
pub(super) fn completions(args: &CompletionsArgs) {
    // If the reader has gone away, nobody needs the rest.
    let _ = io::stdout().write_all(&script(args.shell));
}

fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    generate(shell, &mut CommandLine::command(), "jjleak", &mut script);
    script
}

/// Writes all man pages and completions.
pub(super) fn write(args: &ManualArgs) -> Result<(), Failure> {
    for (shell, name) in [
        (Shell::Bash, "jjleak.bash"),
        (Shell::Elvish, "jjleak.elv"),
        (Shell::Fish, "jjleak.fish"),
        (Shell::Zsh, "_jjleak"),
    ] {
        put(&args.folder.join("completions").join(name), &script(shell))?;
    }
    let mut whole = CommandLine::command();
    whole.build();
    page(&args.folder, "jjleak", whole.clone())?;
    for command in whole.get_subcommands().filter(|command| !command.is_hide_set()) {
        if command.get_name() != "help" {
            let name = format!("jjleak-{}", command.get_name());
            page(&args.folder, &name, command.clone().disable_help_subcommand(true))?;
        }
    }
    Ok(())
}

fn page(folder: &Path, name: &str, command: clap::Command) -> Result<(), Failure> {
    let mut page = Vec::new();
    let rendered = Man::new(command).date("").manual("jjleak").render(&mut page);
    rendered.map_err(|error| {
        Failure::new(OTHER, format!("cannot render {name}.1: {error}"), "please report this")
    })?;
    put(&folder.join("man").join(format!("{name}.1")), &page)
}

fn put(path: &Path, content: &[u8]) -> Result<(), Failure> {
    let mut file = PendingFile::named(path)?;
    file.write(content)?;
    file.finish()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_completes_every_command() {
        for shell in [Shell::Bash, Shell::Elvish, Shell::Fish, Shell::Zsh] {
            let script = String::from_utf8(script(shell)).unwrap();
            for word in ["report", "diff", "doctor", "system-wide", "baseline"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
        }
    }
}
