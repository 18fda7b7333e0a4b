//! The program that is timed, and what its timings say.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use jjleak::allocators::{CallFollowing, Hints, find_sites};
use jjleak::attach::{Attachment, CodeMapping, Programs, Scope, Settings, Target};
use jjleak::processes::{Mapping, ModuleFiles, ModuleTable, Pid};
use jjleak::unwind;

use crate::{PAIRS, Result};

#[derive(Default)]
pub(crate) struct Timings(pub(crate) Vec<f64>);

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

    pub(crate) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// Distance between the quartiles, in per cent of the median.
    pub(crate) fn spread(&self) -> f64 {
        (self.quantile(0.75) - self.quantile(0.25)) / self.median() * 100.0
    }
}

/// What is attached to it.
#[derive(Clone, Copy)]
pub(crate) struct Mode {
    pub(crate) programs: Programs,
    pub(crate) following: CallFollowing,
}

/// The timed program. Killed when dropped.
pub(crate) struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Program {
    pub(crate) fn start(path: &Path) -> Result<Self> {
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
    pub(crate) fn time(&mut self, depth: u32) -> Result<f64> {
        writeln!(self.input, "{depth} {PAIRS}")?;
        Ok(self.read_line()?.parse()?)
    }

    fn read_line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    pub(crate) fn attach(&self, Mode { programs, following }: Mode) -> Result<Attachment> {
        let pid = Pid::new(self.child.id()).ok_or("PID 0")?;
        let mut attachment = Attachment::load(Settings::new(programs))?;
        let slot = attachment.processes_mut().reserve()?.ok_or("no room for a process")?;
        let image = attachment.processes_mut().assign(slot, pid)?.ok_or("it is profiled already")?;
        let seen = attachment.begin_look(slot)?;
        let scope = Scope::Process { slot, thread: pid };
        let mut modules = ModuleTable::default();
        for id in modules.refresh(&mut ModuleFiles::default(), pid, &Mapping::all(pid)?) {
            let module = modules.get(id);
            let hints = Hints { following, ..Hints::default() };
            for allocator in find_sites(&module.read()?, hints)?.profiled {
                let targets =
                    allocator.sites.into_iter().map(|site| Target { file: module.stable_path(), site });
                attachment.attach(scope, &targets.collect::<Vec<_>>())?;
            }
        }
        for (_, module) in modules.iter() {
            // What has no rows is unwound by frame pointers.
            if let Ok(rows) = unwind::compile(&*module.read()?) {
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

pub(crate) fn compile() -> Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/pairs.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pairs");
    let status = Command::new("cc")
        .args(["-O2", "-g", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-o"])
        .args([&program, &source])
        .status()?;
    if status.success() { Ok(program) } else { Err(format!("cc ended with {status}").into()) }
}
