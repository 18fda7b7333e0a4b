//! Examination of a JVM, read from outside: the JVM itself is not involved.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::allocators::{OLDEST_JDK_WITH_HEAP, java_heap_sites};
use crate::file_content::{Content, LazyFile};
use crate::jcmd::{self, Access, Question, Unfit};
use crate::jvm::{self, Description, Jvm, Origin, ProcessMemory};
use crate::processes::{Mapping, Module, ModuleTable, Pid, Root};
use crate::render::humane_bytes;

/// Findings on a JVM.
#[derive(Debug)]
pub struct ExaminedJvm {
    /// Its version, or the reason why it is unknown.
    pub release: Result<String, String>,
    /// Its vendor; empty if unknown.
    pub vendor: String,
    /// Its garbage collector; empty when unknown.
    pub collector: &'static str,
    /// Source of the names of Java methods.
    pub names: Names,
    /// Possibility of following the objects of its Java heap.
    pub heap: HeapProbes,
    /// Relevant flags with their values; true if a flag has been set explicitly.
    pub flags: Vec<(String, bool)>,
    /// State of Native Memory Tracking.
    pub tracking: Tracking,
    /// Libraries that are not part of the JDK: the JVM does not know of their allocations.
    pub libraries: Vec<PathBuf>,
    /// Access for requesting a perf map from the JVM, or the reason why it cannot be requested.
    pub asking: Result<Access, Unfit>,
}

/// Source of the names of Java methods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Names {
    /// The JVM's own structures, with inlined methods and lines.
    All,
    /// The JVM's own structures, but without these: its version is not fully supported.
    Without(&'static str),
    /// A perf map only, for this reason.
    Unreadable(String),
}

/// Possibility of following a JVM with `jjleak heap`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeapProbes {
    /// The functions that announce objects have been found.
    Found,
    /// They do not say which thread allocates: they are those of this version.
    TooOld(u64),
    /// They have no symbols in the library, nor in a debug file.
    NoSymbols,
}

impl HeapProbes {
    fn of(library: &Module, version: Option<u64>) -> Self {
        if let Some(version @ 1..OLDEST_JDK_WITH_HEAP) = version {
            return Self::TooOld(version);
        }
        let file = library.content();
        let elf = file.as_ref().map_or(Content::Memory(&[]), Content::from);
        let debug_file = library.find_debug_file(elf);
        let debug_file = debug_file.as_ref().and_then(|file| LazyFile::new(file).ok());
        let found = java_heap_sites(&library.path, elf, debug_file.as_ref().map(Content::from));
        if found.is_ok_and(|found| !found.profiled.is_empty()) { Self::Found } else { Self::NoSymbols }
    }
}

/// Native Memory Tracking (NMT), the JVM's own accounting of native memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tracking {
    /// Off.
    Off,
    /// On, in this mode.
    On(String),
    /// Unknown.
    Unknown,
}

/// Flags that select the garbage collector, and its name; at most one is on.
const COLLECTORS: [(&str, &str); 7] = [
    ("UseG1GC", "G1"),
    ("UseParallelGC", "Parallel"),
    ("UseSerialGC", "Serial"),
    ("UseZGC", "ZGC"),
    ("UseShenandoahGC", "Shenandoah"),
    ("UseEpsilonGC", "Epsilon"),
    ("UseConcMarkSweepGC", "CMS"),
];

/// Flags that bound native memory, each in bytes.
const LIMITS: [&str; 4] = ["MaxHeapSize", "MaxDirectMemorySize", "MaxMetaspaceSize", "ReservedCodeCacheSize"];

/// Flags that, at other values than the default, change what jjleak can see or request.
const SWITCHES: [&str; 5] =
    ["PreserveFramePointer", "TieredCompilation", "Inline", "DisableAttachMechanism", "ReduceSignalUsage"];

/// Maximum size of the `release` file that is read for the vendor; real ones have 2 KB.
const MAX_RELEASE_BYTES: u64 = 64 << 10;

/// Maximum number of folders from the library's to the JVM's: `jre/lib/amd64/server` in JDK 8.
const MAX_DEPTH: usize = 5;

impl ExaminedJvm {
    /// Examines the JVM in a process, if there is one.
    pub(super) fn find(pid: Pid, mappings: &[Mapping], modules: &ModuleTable) -> Option<Self> {
        let (library, bias) = jvm::library(mappings, modules)?;
        let described = describe(pid, library, bias);
        let known = described.as_ref().ok();
        let home = home(pid, &library.path);
        Some(Self {
            release: described.as_ref().map(|known| known.release().to_owned()).map_err(Clone::clone),
            vendor: known.and_then(told_vendor).or_else(|| vendor(&home.as_ref()?.1)).unwrap_or_default(),
            collector: known.map(collector).unwrap_or_default(),
            names: names(pid, library, bias),
            heap: HeapProbes::of(library, known.map(Description::version)),
            flags: known.map(flags).unwrap_or_default(),
            tracking: known.map_or(Tracking::Unknown, tracking),
            libraries: foreign(modules, home.map_or(&library.path, |(home, _)| home)),
            asking: jcmd::access(known, Question::PerfMap),
        })
    }
}

fn describe(pid: Pid, library: &Module, bias: u64) -> Result<Description<ProcessMemory>, String> {
    let memory = ProcessMemory::open(pid).map_err(|error| error.to_string())?;
    let library = library.content().map_err(|error| error.to_string())?;
    Description::open(memory, &library, bias).map_err(|error| error.to_string())
}

fn names(pid: Pid, library: &Module, bias: u64) -> Names {
    let opened = ProcessMemory::open(pid)
        .and_then(|memory| Ok((memory, library.content()?)))
        .map_err(|error| error.to_string())
        .and_then(|(memory, library)| Jvm::open(memory, &library, bias).map_err(|error| error.to_string()));
    match opened {
        Ok(jvm) => jvm.lacks().map_or(Names::All, Names::Without),
        Err(error) => Names::Unreadable(error),
    }
}

/// Vendor according to the JVM's own memory: runtimes created by `jlink` have no `release` file that states it.
fn told_vendor(known: &Description<ProcessMemory>) -> Option<String> {
    Some(known.vendor().to_owned()).filter(|vendor| !vendor.is_empty())
}

fn collector(known: &Description<ProcessMemory>) -> &'static str {
    let used = COLLECTORS.iter().find(|(flag, _)| known.is_on(flag) == Some(true));
    used.map(|(_, name)| *name).unwrap_or_default()
}

fn flags(known: &Description<ProcessMemory>) -> Vec<(String, bool)> {
    let is_set = |flag| known.origin(flag) == Some(Origin::User);
    let limits = LIMITS.iter().filter_map(|flag| {
        let value = known.number(flag).filter(|_| is_set(flag) || *flag == "MaxHeapSize")?;
        let humane = humane_bytes(value).map(|value| format!(" ({value})")).unwrap_or_default();
        Some((format!("-XX:{flag}={value}{humane}"), is_set(flag)))
    });
    let switches = SWITCHES.iter().filter_map(|flag| {
        let sign = if known.is_on(flag)? { '+' } else { '-' };
        is_set(flag).then(|| (format!("-XX:{sign}{flag}"), true))
    });
    limits.chain(switches).collect()
}

fn tracking(known: &Description<ProcessMemory>) -> Tracking {
    match known.text("NativeMemoryTracking") {
        Some(mode) if mode == "off" => Tracking::Off,
        Some(mode) if ["summary", "detail"].contains(&mode.as_str()) => Tracking::On(mode),
        _ => Tracking::Unknown,
    }
}

/// Folder of a JVM, and the text of its `release` file. The library is a few folders deeper; the depth depends on the JDK's
/// version and on the launcher. For a process with another root in the same file system (chroot), the kernel reports paths from
/// the outer root.
fn home(pid: Pid, library: &Path) -> Option<(&Path, String)> {
    let root = Root::of(pid).ok()?;
    let outer = fs::read_link(pid.proc_file("root")).unwrap_or_default();
    library.ancestors().skip(1).take(MAX_DEPTH).find_map(|home| {
        let inner = home.strip_prefix(&outer).unwrap_or(home);
        let file: File = root.open(&Path::new("/").join(inner).join("release")).ok()?;
        let mut text = Vec::new();
        file.take(MAX_RELEASE_BYTES).read_to_end(&mut text).ok()?;
        Some((home, String::from_utf8_lossy(&text).into_owned()))
    })
}

/// Vendor in a `release` file (`IMPLEMENTOR`).
fn vendor(release: &str) -> Option<String> {
    let value = release.lines().find_map(|line| line.strip_prefix("IMPLEMENTOR="))?;
    Some(value.trim().trim_matches('"').to_owned())
}

/// Libraries outside the JVM's folder, except those of the C and C++ runtimes.
fn foreign(modules: &ModuleTable, home: &Path) -> Vec<PathBuf> {
    const RUNTIME: [&str; 8] =
        ["ld-", "libc.", "libdl.", "libgcc_s.", "libm.", "libpthread.", "librt.", "libstdc++."];
    let is_foreign = |module: &Module| {
        let name = module.path.file_name().unwrap_or_default().to_string_lossy();
        let is_runtime = RUNTIME.iter().any(|known| name.starts_with(known));
        !is_runtime && !module.path.starts_with(home) && !jvm::is_library(module)
    };
    let foreign = modules.iter().filter(|(_, module)| is_foreign(module));
    foreign.map(|(_, module)| module.path.clone()).collect()
}
