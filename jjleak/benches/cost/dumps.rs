//! Time and memory for a large heap profile of jemalloc, beside jeprof.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fastrand::Rng;
use jjleak::processes::Pid;

use crate::Result;
use crate::options::Options;
use crate::own::Readings;
use crate::report::{Fact, Section};
use crate::subjects::{Environment, Talker};
use crate::timings::Timings;

const STACKS: usize = 1_000_000;
/// Functions, with so many call sites each, of which each calls one function.
const FUNCTIONS: usize = 1_000;
const CALL_SITES: usize = 20;
/// Bytes of code of a function.
const FUNCTION_BYTES: u64 = 1500;
/// Frames of a stack.
const DEPTHS: Range<usize> = 4..8;
const READING: Duration = Duration::from_millis(5);
/// Shares of jeprof's time and memory.
const WANTED_TIME: f64 = 1. / 20.;
const WANTED_MEMORY: f64 = 1. / 4.;

/// A program that maps some libraries, and waits.
const PROGRAM: &str = "import ssl, sqlite3, ctypes, sys\nprint('ready', flush=True)\nsys.stdin.read()";

pub(crate) fn measure(options: &Options) -> Result<Section> {
    let folder = tempfile::tempdir()?;
    let dump = folder.path().join("program.heap");
    let count = options.choose(STACKS, 10_000);
    let bytes = write_dump(&dump, count)?;
    let picture = folder.path().join("picture.svg");
    let mut jjleak = Command::new(env!("CARGO_BIN_EXE_jjleak"));
    jjleak.args(["report", "--format", "svg", "--out"]).arg(&picture).arg(&dump);
    let mut jeprof = Command::new("jeprof");
    jeprof.args(["--svg", "/usr/bin/python3"]).arg(&dump);
    let ours = Taken::by(&mut jjleak)?;
    let theirs = Taken::by(&mut jeprof)?;
    let fact = |name: &str, unit, value| Fact::new(name, unit, Timings(vec![value]).figure());
    Ok(Section {
        title: "A large heap profile".to_owned(),
        says: format!(
            "Reading, naming and drawing a jemalloc profile of {count} stacks and {} MB, from a program that has ended. Memory is the \
             largest: of jjleak with the process that reads symbols, and of jeprof without the programs that it calls.",
            bytes / 1_000_000
        ),
        facts: vec![
            fact("jjleak: time", "s", ours.seconds),
            fact("jeprof: time", "s", theirs.seconds),
            fact("jjleak's share of jeprof's time", "", ours.seconds / theirs.seconds).at_most(WANTED_TIME),
            fact("jjleak: memory", "MiB", ours.mebibytes),
            fact("jeprof: memory", "MiB", theirs.mebibytes),
            fact("jjleak's share of jeprof's memory", "", ours.mebibytes / theirs.mebibytes)
                .at_most(WANTED_MEMORY),
        ],
        ..Section::default()
    })
}

/// Time and memory that a tool took.
struct Taken {
    seconds: f64,
    mebibytes: f64,
}

impl Taken {
    fn by(tool: &mut Command) -> Result<Self> {
        let begun = Instant::now();
        let mut process = tool.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let pid = Pid::new(process.id()).ok_or("PID 0")?;
        let mut readings = Readings::default();
        let status = loop {
            readings.take(pid);
            if let Some(status) = process.try_wait()? {
                break status;
            }
            sleep(READING);
        };
        if !status.success() {
            return Err(format!("{} failed: {status}", tool.get_program().display()).into());
        }
        Ok(Self { seconds: begun.elapsed().as_secs_f64(), mebibytes: readings.peak_mib() })
    }
}

/// Writes a profile in the code of a running program; returns its size.
fn write_dump(to: &Path, count: usize) -> Result<u64> {
    let mut python = Command::new("/usr/bin/python3");
    let program = Talker::start(python.args(["-c", PROGRAM]), &Environment::new())?;
    let mappings = fs::read_to_string(format!("/proc/{}/maps", program.pid()))?;
    let code = mappings.lines().filter_map(code).collect::<Vec<_>>();
    let mut random = Rng::with_seed(7);
    let mut functions = Vec::new();
    while functions.len() < FUNCTIONS {
        let file = &code[random.usize(..code.len())];
        if file.end - file.start > 2 * FUNCTION_BYTES {
            let start = random.u64(file.start + 16..file.end - FUNCTION_BYTES - 16);
            let site = |_| (random.u64(start..start + FUNCTION_BYTES), random.usize(..FUNCTIONS));
            functions.push((0..CALL_SITES).map(site).collect::<Vec<_>>());
        }
    }
    let mut file = BufWriter::new(File::create(to)?);
    writeln!(file, "heap_v2/524288\n  t*: {count}: {} [0: 0]", count * 64)?;
    for _ in 0..count {
        let (mut function, mut stack) = (0, Vec::new());
        for _ in 0..random.usize(DEPTHS) {
            let (address, called) = functions[function][random.usize(..CALL_SITES)];
            stack.push(address);
            function = called;
        }
        let mut line = "@".to_owned();
        stack.iter().rev().try_for_each(|address| write!(line, " {address:#x}"))?;
        let objects = random.u64(1..9);
        writeln!(
            file,
            "{line}\n  t*: {objects}: {} [0: 0]",
            objects * [64, 128, 512, 4096][random.usize(..4)]
        )?;
    }
    write!(file, "\nMAPPED_LIBRARIES:\n{mappings}")?;
    file.flush()?;
    Ok(fs::metadata(to)?.len())
}

/// Addresses of the code of a file in a line of `/proc/PID/maps`.
fn code(line: &str) -> Option<Range<u64>> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let is_code = words.next()? == "r-xp" && words.next_back()?.starts_with('/');
    let number = |digits| u64::from_str_radix(digits, 16).ok();
    is_code.then_some(number(start)?..number(end)?)
}
