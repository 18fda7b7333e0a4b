//! Cost of the live view for a program with thousands of call sites.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use jjleak::processes::{Pid, cpu_time};

use crate::Result;
use crate::options::Options;
use crate::report::{Fact, Section};
use crate::subjects::Sites;
use crate::timings::Timings;

/// Time until all frames are named, call sites are judged, and the history is full.
const SETTLE: Duration = Duration::from_secs(75);
const MEASURED: Duration = Duration::from_secs(10);
const TURNS: usize = 4;
const WANTED_PERCENT: f64 = 2.;
const WANTED_MS: f64 = 20.;
/// Timeout for expected text.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn measure(options: &Options) -> Result<Section> {
    let mut program = Sites::start()?;
    let terminal = Terminal::run(&format!("{} top -p {} 1", env!("CARGO_BIN_EXE_jjleak"), program.pid()))?;
    terminal.until("No allocations yet.")?;
    program.keep()?;
    terminal.until(&format!("{} ", Sites::NUMBER))?;
    std::thread::sleep(if options.quick { Duration::from_secs(5) } else { SETTLE });
    let pid = terminal.program()?;
    let (mut percents, mut snapshots) = (Timings::default(), Timings::default());
    for _ in 0..options.choose(TURNS, 1) {
        let taken = || cpu_time(pid).ok_or("the view has exited");
        let (begun, before) = (Instant::now(), taken()?);
        std::thread::sleep(MEASURED);
        let percent = taken()?.saturating_sub(before).as_secs_f64() / begun.elapsed().as_secs_f64() * 100.;
        percents.0.push(percent);
        snapshots.0.push(percent * 10. * pace(&terminal.screen()?)?);
    }
    let number = Sites::NUMBER;
    Ok(Section {
        title: "The live view".to_owned(),
        says: format!(
            "`jjleak top`, one snapshot per second, on a program that allocates and frees at {number} call sites each \
             second. Snapshots become less frequent where they would take more than 2 % of a core."
        ),
        facts: vec![
            Fact::new("CPU usage of the live view (of one core)", "%", percents.figure())
                .at_most(WANTED_PERCENT),
            Fact::new("CPU time per snapshot, with all work until the next", "ms", snapshots.figure())
                .at_most(WANTED_MS),
        ],
        ..Section::default()
    })
}

/// Seconds between snapshots, as shown by the view.
fn pace(screen: &str) -> Result<f64> {
    let words = screen.split("slowed to ").nth(1).or_else(|| screen.split("every ").nth(1));
    let seconds = words.and_then(|words| words.split(' ').next()?.parse().ok());
    seconds.ok_or_else(|| format!("the view shows no interval:\n{screen}").into())
}

/// Terminal that runs a program. Killed when dropped.
struct Terminal {
    folder: tempfile::TempDir,
}

impl Terminal {
    fn run(command: &str) -> Result<Self> {
        let terminal = Self { folder: tempfile::tempdir()? };
        terminal.tmux(&["new-session", "-d", "-x", "120", "-y", "40", &format!("exec {command}")])?;
        Ok(terminal)
    }

    fn screen(&self) -> Result<String> {
        self.tmux(&["capture-pane", "-p"])
    }

    fn until(&self, what: &str) -> Result<()> {
        let begun = Instant::now();
        while !self.screen()?.contains(what) {
            if begun.elapsed() > PATIENCE {
                return Err(format!("{what:?} did not appear:\n{}", self.screen()?).into());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    fn program(&self) -> Result<Pid> {
        let pid = self.tmux(&["display-message", "-p", "#{pane_pid}"])?;
        Pid::new(pid.trim().parse()?).ok_or_else(|| "PID 0".into())
    }

    fn tmux(&self, arguments: &[&str]) -> Result<String> {
        let socket = self.folder.path().join("socket");
        let output = tmux(&socket).args(arguments).output()?;
        if !output.status.success() {
            return Err(format!("tmux: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        Ok(String::from_utf8(output.stdout)?)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.tmux(&["kill-server"]);
    }
}

fn tmux(socket: &Path) -> Command {
    let mut command = Command::new("tmux");
    command.arg("-u").arg("-S").arg(socket).args(["-f", "/dev/null"]).env_remove("TMUX");
    command
}
