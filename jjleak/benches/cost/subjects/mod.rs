//! Profiled programs. Each waits before its work, so that a tool can be attached.

mod buffers;
mod calls;
mod command;
mod redis;
mod sites;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::Result;

pub(crate) use buffers::Buffers;
pub(crate) use calls::{Calls, MICRO, Micro, Paced};
pub(crate) use command::{compiler, python, sqlite};
pub(crate) use redis::Redis;
pub(crate) use sites::Sites;

/// Environment variables of a program, for tools that are libraries.
pub(crate) type Environment = Vec<(String, String)>;

/// A program to profile.
pub(crate) trait Subject {
    /// Name of its column.
    fn name(&self) -> String;

    /// Starts it. `waiting` is the environment of what waits in its place until it runs, if that is another program.
    fn start(&self, environment: &Environment, waiting: &[(String, String)]) -> Result<Box<dyn Running>>;

    /// The library whose `malloc` it calls.
    fn allocator(&self) -> &'static Path {
        Path::new(LIBC)
    }
}

/// Process of a [`Subject`]. Killed when dropped.
pub(crate) trait Running {
    fn pid(&self) -> u32;

    /// Does its work once; returns the time in seconds.
    fn run(&mut self) -> Result<f64>;
}

/// Path on Debian and its derivatives.
pub(crate) const LIBC: &str = "/usr/lib/x86_64-linux-gnu/libc.so.6";
pub(crate) const JEMALLOC: &str = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";

/// A program that answers each line with a line.
pub(crate) struct Talker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Talker {
    /// Returns when it is ready.
    pub(crate) fn start(command: &mut Command, environment: &Environment) -> Result<Self> {
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let input = child.stdin.take().ok_or("no stdin")?;
        let output = BufReader::new(child.stdout.take().ok_or("no stdout")?);
        let mut talker = Self { child, input, output };
        match talker.answer()?.as_str() {
            "ready" => Ok(talker),
            other => Err(format!("{} wrote {other:?}", command.get_program().display()).into()),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a line, and waits for the answer.
    pub(crate) fn ask(&mut self, question: &str) -> Result<f64> {
        self.ask_for(question).map(|[answer]| answer)
    }

    /// The same for an answer of several numbers.
    pub(crate) fn ask_for<const NUMBERS: usize>(&mut self, question: &str) -> Result<[f64; NUMBERS]> {
        writeln!(self.input, "{question}")?;
        let answer = self.answer()?;
        let numbers: Option<Vec<f64>> = answer.split(' ').map(|number| number.parse().ok()).collect();
        let numbers = numbers.and_then(|numbers| numbers.try_into().ok());
        numbers.ok_or_else(|| format!("unexpected answer to {question:?}: {answer:?}").into())
    }

    fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Path of a file of this benchmark.
pub(crate) fn own(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/cost").join(path)
}

/// Path of a generated file.
pub(crate) fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Compiles a Java program of this benchmark. Returns the folder with its classes.
pub(crate) fn java_classes(name: &str) -> Result<PathBuf> {
    let folder = scratch(&format!("bench-{}", name.to_lowercase()));
    fs::create_dir_all(&folder)?;
    let source = own(&format!("subjects/{name}.java"));
    let output = Command::new("javac").args(["-nowarn", "-d"]).arg(&folder).arg(source).output()?;
    if output.status.success() { Ok(folder) } else { Err(String::from_utf8_lossy(&output.stderr).into()) }
}

/// Compiles a C program of this benchmark.
pub(crate) fn compile(name: &str) -> Result<PathBuf> {
    let program = scratch(name);
    let options = ["-O2", "-g", "-pthread", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-o"];
    let source = own(&format!("subjects/{name}.c"));
    let status = Command::new("cc").args(options).args([&program, &source]).status()?;
    if status.success() { Ok(program) } else { Err(format!("cc failed: {status}").into()) }
}
