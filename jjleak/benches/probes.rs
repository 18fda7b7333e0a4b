//! What jjleak costs per malloc+free pair, against bare probes at the same sites, in one run.
//!
//! The same process is timed untraced, with probes that do nothing, and with the accounting, in turns; figures are
//! medians over all turns. `cargo xtask bench` runs it.

#![expect(clippy::print_stdout, reason = "prints its table")]

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use jjleak::allocators::{Hints, find_sites};
use jjleak::attach::{self, Attachment, CodeMapping, Programs, Scope, Settings, Target};
use jjleak::collect::{Collector, View};
use jjleak::processes::{Mapping, ModuleFiles, ModuleTable, Pid};
use jjleak::unwind;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Frames on the stack at malloc, itself included: the depths of the budgets.
const FRAMES: [u32; 3] = [8, 27, 67];
/// Frames that are there without any recursion: malloc, the loop, the last recursion, main and the three that call it.
const OTHER_FRAMES: u32 = 7;
/// Turns of untraced, bare, jjleak.
const TURNS: usize = 3;
/// Timings a turn.
const TIMINGS: usize = 7;
/// Pairs a timing: some 50 ms with probes, long against the clock and short against other load.
const PAIRS: u32 = 20_000;
/// Beyond this spread between the quartiles the machine is too noisy to compare.
const NOISY_PERCENT: f64 = 10.0;

fn main() -> Result<()> {
    attach::preflight()?;
    let mut program = Program::start(&compile()?)?;
    println!("ns per malloc+free pair; ratio to bare probes at the same sites; spread between quartiles");
    println!(
        "{:>6}  {:>9}  {:>9}  {:>9}  {:>7}  {:>7}",
        "frames", "untraced", "bare", "jjleak", "ratio", "spread"
    );
    for frames in FRAMES {
        let [untraced, bare, jjleak] = measure(&mut program, frames - OTHER_FRAMES)?;
        let spread = bare.spread().max(jjleak.spread());
        println!(
            "{frames:>6}  {:>9.1}  {:>9.0}  {:>9.0}  {:>7.2}  {spread:>5.1} %",
            untraced.median(),
            bare.median(),
            jjleak.median(),
            jjleak.median() / bare.median(),
        );
        if spread > NOISY_PERCENT {
            println!("        the machine is noisy: repeat this when it is quiet");
        }
    }
    Ok(())
}

fn measure(program: &mut Program, depth: u32) -> Result<[Timings; 3]> {
    let mut all: [Timings; 3] = Default::default();
    for _ in 0..TURNS {
        for (programs, timings) in
            [None, Some(Programs::Bare), Some(Programs::Accounting)].iter().zip(&mut all)
        {
            let attachment = programs.map(|programs| program.attach(programs)).transpose()?;
            for _ in 0..TIMINGS {
                timings.0.push(program.time(depth)?);
            }
            if let (Some(attachment), Some(Programs::Accounting)) = (attachment, programs) {
                check_stacks(attachment, depth)?;
            }
        }
    }
    Ok(all)
}

/// A figure is only worth something if the stacks are whole.
fn check_stacks(mut attachment: Attachment, depth: u32) -> Result<()> {
    let mut collector = Collector::new(&mut attachment)?;
    let images: Vec<_> = attachment.processes().iter().map(|tracked| tracked.image).collect();
    let snapshots = collector.snapshots(&attachment, &images, View::default())?;
    let rows = snapshots.values().flat_map(|snapshot| snapshot.stacks.keys());
    let deepest = rows.filter_map(|row| collector.stack(*row)).max_by_key(|stack| stack.frames.len());
    match deepest {
        Some(stack) if stack.frames.len() > depth as usize => Ok(()),
        other => Err(format!("stacks are not whole: {other:?}").into()),
    }
}

#[derive(Default)]
struct Timings(Vec<f64>);

impl Timings {
    /// The value below which `share` of the timings lie.
    fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an index into a few timings"
        )]
        let index = ((sorted.len() - 1) as f64 * share).round() as usize;
        sorted[index]
    }

    fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// Distance between the quartiles, in per cent of the median.
    fn spread(&self) -> f64 {
        (self.quantile(0.75) - self.quantile(0.25)) / self.median() * 100.0
    }
}

/// The timed program. Killed when dropped.
struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn start(path: &Path) -> Result<Self> {
        let mut child = Command::new(path).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().ok_or("no stdin")?;
        let output = BufReader::new(child.stdout.take().ok_or("no stdout")?);
        let mut program = Self { child, input, output };
        match program.read_line()?.as_str() {
            "ready" => Ok(program),
            other => Err(format!("the timed program said {other:?}").into()),
        }
    }

    /// Nanoseconds of one pair.
    fn time(&mut self, depth: u32) -> Result<f64> {
        writeln!(self.input, "{depth} {PAIRS}")?;
        Ok(self.read_line()?.parse()?)
    }

    fn read_line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    fn attach(&self, programs: Programs) -> Result<Attachment> {
        let pid = Pid::new(self.child.id()).ok_or("PID 0")?;
        let mut attachment = Attachment::load(Settings::new(programs))?;
        let slot = attachment.processes_mut().reserve()?.ok_or("no room for a process")?;
        let image = attachment.processes_mut().assign(slot, pid)?.ok_or("it is profiled already")?;
        let seen = attachment.begin_look(slot)?;
        let scope = Scope::Process { slot, thread: pid };
        let mut modules = ModuleTable::default();
        for id in modules.refresh(&mut ModuleFiles::default(), pid, &Mapping::all(pid)?) {
            let module = modules.get(id);
            for allocator in find_sites(&module.read()?, Hints::default())?.profiled {
                let targets =
                    allocator.sites.into_iter().map(|site| Target { file: module.stable_path(), site });
                attachment.attach(scope, &targets.collect::<Vec<_>>())?;
            }
        }
        for (_, module) in modules.iter() {
            // What has no rows is unwound by frame pointers.
            if let Ok(rows) = unwind::compile(&module.read()?) {
                attachment.add_rows(module.version, &rows)?;
            }
        }
        let code: Vec<_> = Mapping::all(pid)?
            .iter()
            .filter(|mapping| mapping.executable && mapping.file.is_some())
            .map(|mapping| CodeMapping::of(mapping, &modules))
            .collect();
        attachment.set_code(image, &code, seen)?;
        attachment.processes().arm(image)?;
        Ok(attachment)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn compile() -> Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/pairs.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pairs");
    let status = Command::new("cc")
        .args(["-O2", "-g", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-o"])
        .args([&program, &source])
        .status()?;
    if status.success() { Ok(program) } else { Err(format!("cc ended with {status}").into()) }
}
