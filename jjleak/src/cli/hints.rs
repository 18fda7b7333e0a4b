//! Usage errors, with the command line that was probably meant.

use std::ffi::{OsStr, OsString};

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::command_line::CommandLine;
use super::failure::{Failure, USAGE};

/// Printed if jjleak is started without arguments.
pub(super) const START: &str = "\
jjleak names the call paths that leak memory in a running process. What to type:

  sudo jjleak -p 4242              profile the process with this PID: a report every 5 s, Ctrl-C for the last one
  sudo jjleak --name '^java$'      profile all processes of this name
  sudo jjleak -- ./my-server       start a command and profile it from its first allocation
  sudo jjleak top -p 4242          a live view instead of reports
  sudo jjleak -p 4242 --estimate   predict what profiling would cost the process
  jjleak report jjleak-4242.pb.gz  show a saved profile (--format pprof)
  jjleak --help                    everything else
";

/// Names of the arguments as clap's errors give them.
const INTERVAL: &str = "[INTERVAL]";
const PID: &str = "--pid <PID>";

/// The only subcommand with the arguments of profiling.
const TOP: &str = "top";

/// Maximum number of typing errors in a command's name.
const TYPING_ERRORS: usize = 2;

/// The failure for arguments that clap has refused.
pub(super) fn usage(error: &clap::Error, arguments: &[OsString]) -> Failure {
    let (command, first) = match arguments.get(1) {
        Some(word) if word == TOP => ("jjleak top", arguments.get(2)),
        word => ("jjleak", word),
    };
    let first = first.and_then(|word| word.to_str()).unwrap_or_default();
    let invalid = |argument: &str| {
        let is_it = text(error, ContextKind::InvalidArg).is_some_and(|name| name.starts_with(argument));
        text(error, ContextKind::InvalidValue).filter(|_| is_it)
    };
    if let Some(value) = invalid(PID) {
        return not_a_pid(value, command);
    }
    let is_number = first.parse::<u32>().is_ok_and(|number| number > 0);
    let lacks_target = error.kind() == ErrorKind::MissingRequiredArgument
        && text(error, ContextKind::InvalidArg).is_some_and(|missing| missing.contains(PID));
    match invalid(INTERVAL) {
        Some(value) if value == first && !is_number => return no_command(value, command),
        _ if is_number && (lacks_target || invalid(INTERVAL) == Some(first)) => {
            let what = format!("no target: {first} stands in the place of the interval");
            return Failure::new(USAGE, what, format!("did you mean {command} -p {first}?"));
        }
        _ => {}
    }
    if lacks_target {
        let starts = if command.ends_with(" memory") { "" } else { ", or a command to start (-- CMD)" };
        let remedy = format!("name a process (-p PID, --name REGEX, --system-wide){starts}");
        return Failure::new(USAGE, "no target", remedy);
    }
    of_clap(error)
}

/// A string in the context of an error; those of several values in one.
fn text(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text),
        ContextValue::Strings(all) => all.iter().find(|text| text.contains(PID)).map(String::as_str),
        _ => None,
    }
}

fn not_a_pid(value: &str, command: &str) -> Failure {
    let remedy = if value.parse::<f64>().is_ok() {
        "ps -e lists processes with their PIDs".to_owned()
    } else {
        let name = shell_words::quote(value);
        format!("profile by name with {command} --name {name}, or find the PID with pgrep {name}")
    };
    let what = format!("-p {value}: not a PID, which is the number of a running process, such as 4242");
    Failure::new(USAGE, what, remedy)
}

/// The first argument is neither a command nor a number.
fn no_command(word: &str, command: &str) -> Failure {
    let commands = CommandLine::command();
    let names = commands.get_subcommands().filter(|known| !known.is_hide_set()).map(clap::Command::get_name);
    let nearest = names.map(|name| (typing_errors(word, name), name)).min();
    let what = format!("{word} is neither a command of jjleak nor a number of seconds");
    let remedy = match nearest {
        Some((errors, name)) if errors <= TYPING_ERRORS && errors < word.chars().count() => {
            format!("did you mean jjleak {name}?")
        }
        _ => {
            let name = shell_words::quote(word);
            format!(
                "profile by name with {command} --name {name}, or start a command with {command} -- {name}"
            )
        }
    };
    Failure::new(USAGE, what, remedy)
}

/// Number of letters inserted, left out, replaced, or swapped with their neighbour (optimal string alignment).
fn typing_errors(typed: &str, meant: &str) -> usize {
    let (typed, meant): (Vec<_>, Vec<_>) = (typed.chars().collect(), meant.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=meant.len()).collect()];
    for i in 1..=typed.len() {
        let mut row = vec![i];
        for j in 1..=meant.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(typed[i - 1] != meant[j - 1]);
            let mut least = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && typed[i - 1] == meant[j - 2] && typed[i - 2] == meant[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[typed.len()][meant.len()]
}

/// Clap's message up to the first empty line; the rest is about usage.
fn of_clap(error: &clap::Error) -> Failure {
    let text = error.to_string();
    let lines: Vec<_> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let what = lines.join(" ");
    Failure::usage(what.strip_prefix("error: ").unwrap_or(&what).to_owned())
}

/// Returns true if jjleak was started without arguments.
pub(super) fn is_bare<A: AsRef<OsStr>>(arguments: &[A]) -> bool {
    arguments.len() <= 1
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// The lines that a user sees.
    fn told(line: &str) -> String {
        let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let error = CommandLine::try_parse_from(&arguments).unwrap_err();
        let failure = usage(&error, &arguments);
        format!("{failure}\nto do: {}", failure.remedy())
    }

    #[test]
    fn a_number_alone_is_asked_back_as_a_pid() {
        for (line, meant) in [("jjleak 1234", "jjleak -p 1234"), ("jjleak top 1234 2", "jjleak top -p 1234")]
        {
            assert!(told(line).ends_with(&format!("\nto do: did you mean {meant}?")), "{}", told(line));
        }
        assert!(told("jjleak 0.5").starts_with("no target\nto do: name a process (-p PID"));
    }

    #[test]
    fn a_mistyped_command_is_corrected_and_another_word_taken_for_a_program() {
        for (typed, meant) in [("tpo", "top"), ("reprot", "report"), ("docter", "doctor"), ("dif", "diff")] {
            let told = told(&format!("jjleak {typed}"));
            assert!(told.ends_with(&format!("to do: did you mean jjleak {meant}?")), "{told}");
        }
        assert_eq!(
            told("jjleak nginx"),
            "nginx is neither a command of jjleak nor a number of seconds\n\
             to do: profile by name with jjleak --name nginx, or start a command with jjleak -- nginx"
        );
    }

    #[test]
    fn a_name_in_place_of_a_pid_is_explained() {
        assert_eq!(
            told("jjleak -p abc"),
            "-p abc: not a PID, which is the number of a running process, such as 4242\n\
             to do: profile by name with jjleak --name abc, or find the PID with pgrep abc"
        );
        assert!(told("jjleak top -p 0").ends_with("to do: ps -e lists processes with their PIDs"));
    }

    #[test]
    fn other_errors_keep_their_words() {
        assert!(told("jjleak -p 1 --format png").contains("unknown format `png`"));
        assert!(told("jjleak -p 1 x").contains("not a number of seconds"));
        assert!(told("jjleak report").contains("required arguments"), "{}", told("jjleak report"));
    }

    #[test]
    fn what_to_type_takes_ten_lines() {
        assert!(START.lines().count() <= 10 && START.lines().all(|line| line.len() <= 120), "{START}");
        assert!(is_bare(&["jjleak"]) && !is_bare(&["jjleak", "5"]));
    }
}
