//! Runs jjleak on the bundled leaking program, as a first demonstration.
//!
//! The program waits on stdin until jjleak's probes are armed, leaks, and prints its ledger; see `tests/fixtures/demo.c`.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, ExitCode, ExitStatus, Stdio},
    sync::mpsc,
    thread,
};

use anyhow::{Context, Result, bail};

use crate::{
    build,
    command::{announce, run, shown},
    ledger::{self, Comparison, Ledger},
    run::jjleak,
    workspace,
};

const SOURCE: &str = "tests/fixtures/demo.c";

/// Prefix of jjleak's message that its probes are armed.
const ATTACHED: &str = "jjleak: attached";

/// A report every second, for one second longer than the program leaks.
const REPORTS: [&str; 2] = ["1", "11"];

/// The program's requests take milliseconds, so that blocks older than half a second can be judged.
const SETTLE: [&str; 2] = ["--settle", "0.5"];

/// `cargo xtask run` without arguments.
pub(crate) fn demo() -> Result<ExitCode> {
    let jjleak = build::program(&build::bpf_object()?, false)?;
    let folder = workspace::target()?.join("demo");
    let output = fresh_output_folder(&folder)?;
    let mut program = Leaking::start(&compile(&folder)?)?;
    announce(&format!("profiling the bundled leaking program, pid {}", program.child.id()));
    let status = profile(&jjleak, &mut program, &output)?;
    if !status.success() {
        bail!("jjleak failed: {status}");
    }
    let files = Files { folder: output, pid: program.child.id() };
    report(&program.finish()?, &files)
}

fn compile(folder: &Path) -> Result<PathBuf> {
    let program = folder.join("demo");
    let source = workspace::root().join(SOURCE);
    let flags = ["-std=c11", "-O2", "-g", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-o"];
    run(Command::new("cc").args(flags).arg(&program).arg(source))
        .context("cannot compile the bundled leaking program: `cc` must be a C compiler")?;
    Ok(program)
}

/// Creates an empty folder, so that all files in it are from this run.
fn fresh_output_folder(folder: &Path) -> Result<PathBuf> {
    let output = folder.join("output");
    if output.exists() {
        fs::remove_dir_all(&output).with_context(|| format!("cannot empty {}", output.display()))?;
    }
    fs::create_dir_all(&output).with_context(|| format!("cannot create {}", output.display()))?;
    Ok(output)
}

/// Runs jjleak on `program`, which continues once the probes are armed.
fn profile(jjleak_program: &Path, program: &mut Leaking, output: &Path) -> Result<ExitStatus> {
    let mut command = jjleak(jjleak_program)?;
    command
        .args(["-p", &program.child.id().to_string()])
        .args(REPORTS)
        .args(SETTLE)
        .args(["--format", "text,svg,json", "--out"])
        .arg(output)
        .stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot start `{}`", shown(&command)))?;
    let messages = child.stderr.take().context("jjleak has no stderr")?;
    let (armed, wait_until_armed) = mpsc::sync_channel(1);
    let relay = thread::spawn(move || pass_on_messages(messages, &armed));
    // If jjleak ends before it is armed, the sender is dropped; its exit status and messages name the cause.
    if wait_until_armed.recv().is_ok() {
        program.go()?;
    }
    let status = child.wait().context("cannot wait for jjleak")?;
    if relay.join().is_err() {
        bail!("passing on jjleak's messages failed");
    }
    Ok(status)
}

/// Copies jjleak's stderr to that of xtask, and signals `armed` when the probes are armed.
fn pass_on_messages(messages: impl Read, armed: &mpsc::SyncSender<()>) {
    for line in BufReader::new(messages).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        eprintln!("{line}");
        if line.starts_with(ATTACHED) {
            // For a second such line, the channel is full or closed, which does no harm.
            let _ = armed.try_send(());
        }
    }
}

fn report(leaked: &Ledger, files: &Files) -> Result<ExitCode> {
    let json = files.of_kind("json")?;
    let text = fs::read_to_string(&json).with_context(|| format!("cannot read {}", json.display()))?;
    let reported = ledger::reported(&text, leaked).with_context(|| format!("in {}", json.display()))?;
    let comparison = Comparison { program: leaked, jjleak: &reported };
    println!("\n{comparison}");
    println!("flame graph: {}", files.of_kind("svg")?.display());
    if !comparison.agrees() {
        bail!("jjleak's account is not the program's");
    }
    println!("agrees to the byte");
    Ok(ExitCode::SUCCESS)
}

/// The files that jjleak has written.
struct Files {
    folder: PathBuf,
    pid: u32,
}

impl Files {
    fn of_kind(&self, extension: &str) -> Result<PathBuf> {
        let path = self.folder.join(format!("jjleak-{}.{extension}", self.pid));
        if !path.is_file() {
            bail!("jjleak ended well and left no {}", path.display());
        }
        Ok(path)
    }
}

/// The leaking program; killed when dropped.
struct Leaking {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Leaking {
    /// Starts it and waits until it is ready.
    fn start(program: &Path) -> Result<Self> {
        let mut child = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().map(BufReader::new).context("the leaking program has no stdout")?;
        let mut leaking = Self { child, stdin, stdout };
        match leaking.next_line()?.as_deref() {
            Some("ready") => Ok(leaking),
            other => bail!("the leaking program said {other:?} instead of \"ready\""),
        }
    }

    /// Makes it leak.
    fn go(&mut self) -> Result<()> {
        let stdin = self.stdin.as_mut().context("the leaking program has no stdin")?;
        stdin.write_all(b"go\n").context("cannot let the leaking program go")
    }

    /// Reads its ledger and lets it exit.
    fn finish(mut self) -> Result<Ledger> {
        let mut ledger = Ledger::new();
        loop {
            match self.next_line()? {
                Some(line) if line == "done" => break,
                Some(line) => ledger.extend(ledger::parse_line(&line)),
                None => bail!("the leaking program ended before it had printed its ledger"),
            }
        }
        drop(self.stdin.take());
        let status = self.child.wait().context("cannot wait for the leaking program")?;
        if !status.success() || ledger.is_empty() {
            bail!("the leaking program ended with {status} and {} ledger lines", ledger.len());
        }
        Ok(ledger)
    }

    fn next_line(&mut self) -> Result<Option<String>> {
        let mut line = String::new();
        let read = self.stdout.read_line(&mut line).context("cannot read from the leaking program")?;
        Ok((read > 0).then(|| line.trim_end().to_owned()))
    }
}

impl Drop for Leaking {
    fn drop(&mut self) {
        // Both fail only if it has already ended and been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_attached_line_is_reported_once_among_other_messages() {
        let (armed, notified) = mpsc::sync_channel(1);
        pass_on_messages(&b"warning: x\njjleak: attached to 1\njjleak: attached to 2\n"[..], &armed);
        assert!(notified.try_recv().is_ok());
        assert!(notified.try_recv().is_err());
    }
}
