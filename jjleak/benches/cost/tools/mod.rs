//! Compared tools: none, empty probes, jjleak, and others.

mod bpftrace;
mod heaptrack;
mod jjleak;

use std::path::{Path, PathBuf};

use ::jjleak::allocators::CallFollowing;
use ::jjleak::attach::Programs;

use crate::Result;
use crate::attached::{Attached, Sites};
use crate::subjects::{Environment, JEMALLOC};

pub(crate) use self::jjleak::Jjleak;

pub(crate) const UNTRACED: &str = "untraced";
pub(crate) const BARE: &str = "bare probes at jjleak's sites";
pub(crate) const JJLEAK: &str = "jjleak";
pub(crate) const BPFTRACE: &str = "bpftrace";
pub(crate) const SAMPLER: &str = "preloaded sampler, no consumer";
pub(crate) const SAMPLED: &str = "jjleak --sampled, one sample in 512 KiB";

/// A tool to run a program with.
pub(crate) struct Tool {
    /// Name of its row.
    pub(crate) name: &'static str,
    kind: Kind,
    /// True if it is measured on continuous calls, timed for milliseconds.
    pub(crate) is_for_calls: bool,
    /// True if it is measured on real programs.
    pub(crate) is_for_programs: bool,
}

#[derive(Clone, Copy)]
enum Kind {
    Nothing,
    Bare(Sites),
    Jjleak(&'static [&'static str]),
    /// The library that samples malloc; true with jjleak as its consumer.
    Sampler(bool),
    Bpftrace,
    Heaptrack,
    /// Value of `MALLOC_CONF`.
    Jemalloc(&'static str),
}

const fn tool(name: &'static str, kind: Kind) -> Tool {
    Tool { name, kind, is_for_calls: true, is_for_programs: true }
}

const AROUND: Sites = Sites::Chosen(CallFollowing::EntryAndReturn);

/// All tools in the order of execution.
pub(crate) const TOOLS: [Tool; 16] = [
    tool(UNTRACED, Kind::Nothing),
    tool("bare probes at the functions' entries", Kind::Bare(Sites::Entries)),
    tool(BARE, Kind::Bare(Sites::Chosen(CallFollowing::Inside))),
    tool(JJLEAK, Kind::Jjleak(&[])),
    Tool { is_for_programs: false, ..tool("bare probes at entry and return", Kind::Bare(AROUND)) },
    Tool {
        is_for_programs: false,
        ..tool("jjleak --entry-and-return", Kind::Jjleak(&["--entry-and-return"]))
    },
    tool("jjleak -C", Kind::Jjleak(&["-C"])),
    tool("jjleak -s 100", Kind::Jjleak(&["-s", "100"])),
    // Its cost depends on the window, and windows are longer than a timing of calls.
    Tool { is_for_calls: false, ..tool("jjleak --max-overhead 5", Kind::Jjleak(&["--max-overhead", "5"])) },
    tool(SAMPLER, Kind::Sampler(false)),
    tool(SAMPLED, Kind::Sampler(true)),
    tool(BPFTRACE, Kind::Bpftrace),
    tool("heaptrack", Kind::Heaptrack),
    tool("jemalloc, profiling off", Kind::Jemalloc("prof:false")),
    tool("jemalloc, every allocation sampled", Kind::Jemalloc("prof:true,lg_prof_sample:0")),
    tool("jemalloc, one sample per 512 KiB", Kind::Jemalloc("prof:true,lg_prof_sample:19")),
];

/// A running tool. Stopped when dropped.
pub(crate) trait AtWork {}

/// No tool to stop.
struct Nothing;

impl AtWork for Nothing {}

impl AtWork for Attached {}

impl Tool {
    /// Returns true if a call takes nanoseconds with it, not microseconds.
    pub(crate) const fn is_without_traps(&self) -> bool {
        matches!(self.kind, Kind::Nothing | Kind::Sampler(_))
    }

    /// Starts what must run before the program; also returns the program's environment.
    pub(crate) fn prepare(&self) -> Result<(Environment, Box<dyn AtWork>)> {
        let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        match self.kind {
            Kind::Heaptrack => {
                let heaptrack = heaptrack::Heaptrack::start()?;
                Ok((heaptrack.environment(), Box::new(heaptrack)))
            }
            Kind::Sampler(_) => {
                let library = sampler();
                if !library.exists() {
                    return Err(format!("{} is missing", library.display()).into());
                }
                Ok((vec![variable("LD_PRELOAD", &library.to_string_lossy())], Box::new(Nothing)))
            }
            Kind::Jemalloc(_) if !Path::new(JEMALLOC).exists() => {
                Err(format!("{JEMALLOC} is missing").into())
            }
            Kind::Jemalloc(options) => {
                let environment = vec![variable("LD_PRELOAD", JEMALLOC), variable("MALLOC_CONF", options)];
                Ok((environment, Box::new(Nothing)))
            }
            _ => Ok((Environment::new(), Box::new(Nothing))),
        }
    }

    /// Environment of what waits in the program's place: jjleak attaches to it, and finds the sampler there already.
    pub(crate) fn waiting<'a>(&self, environment: &'a Environment) -> &'a [(String, String)] {
        if matches!(self.kind, Kind::Sampler(true)) { environment } else { &[] }
    }

    /// Attaches to a running program whose `malloc` is in this library.
    pub(crate) fn attach(&self, pid: u32, allocator: &Path) -> Result<Box<dyn AtWork>> {
        Ok(match self.kind {
            Kind::Nothing | Kind::Sampler(false) | Kind::Heaptrack | Kind::Jemalloc(_) => Box::new(Nothing),
            Kind::Sampler(true) => Box::new(Jjleak::attach(pid, &["--sampled"])?),
            Kind::Bare(sites) => Box::new(Attached::to(pid, Programs::Bare, sites)?),
            Kind::Jjleak(options) => Box::new(Jjleak::attach(pid, options)?),
            Kind::Bpftrace => Box::new(bpftrace::Bpftrace::attach(pid, allocator)?),
        })
    }
}

/// The library that samples malloc, beside jjleak.
fn sampler() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_jjleak")).with_file_name("libjjleak_preload.so")
}
