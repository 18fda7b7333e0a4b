//! What jjleak can tell of a JVM. It is read from outside, as everything else: the JVM is not asked.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::jcmd::{self, Access, Unfit};
use crate::jvm::{self, Description, Jvm, Origin, ProcessMemory};
use crate::processes::{Mapping, Module, ModuleTable, Pid, Root};
use crate::render::humane_bytes;

/// What was found of a JVM.
#[derive(Debug)]
pub struct ExaminedJvm {
    /// Its version, or why it is not known.
    pub release: Result<String, String>,
    /// Who has made it; empty when that is not told.
    pub vendor: String,
    /// Its garbage collector; empty when unknown.
    pub collector: &'static str,
    /// Where the names of Java methods come from.
    pub names: Names,
    /// Flags that matter, as they are, and whether somebody has set them.
    pub flags: Vec<(String, bool)>,
    /// Whether it keeps an account of its own native memory.
    pub tracking: Tracking,
    /// Libraries that are not the JVM's own: what they allocate, it knows nothing of.
    pub libraries: Vec<PathBuf>,
    /// Whether, and how, it may be asked for a perf map.
    pub asking: Result<Access, Unfit>,
}

/// Where the names of Java methods come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Names {
    /// From the JVM's own structures, with inlined methods and lines.
    All,
    /// From the JVM's own structures, but without these: its version is not known well.
    Without(&'static str),
    /// From nowhere but a perf map; why.
    Unreadable(String),
}

/// Native Memory Tracking (NMT), the JVM's own account of native memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tracking {
    /// It is off.
    Off,
    /// It is on, in this form.
    On(String),
    /// It is not known.
    Unknown,
}

/// Flags of which one at most is on, and what they stand for.
const COLLECTORS: [(&str, &str); 7] = [
    ("UseG1GC", "G1"),
    ("UseParallelGC", "Parallel"),
    ("UseSerialGC", "Serial"),
    ("UseZGC", "ZGC"),
    ("UseShenandoahGC", "Shenandoah"),
    ("UseEpsilonGC", "Epsilon"),
    ("UseConcMarkSweepGC", "CMS"),
];

/// Flags that bound native memory, each a number of bytes.
const LIMITS: [&str; 4] = ["MaxHeapSize", "MaxDirectMemorySize", "MaxMetaspaceSize", "ReservedCodeCacheSize"];

/// Flags that change what can be seen or asked, when they are not as usual.
const SWITCHES: [&str; 5] =
    ["PreserveFramePointer", "TieredCompilation", "Inline", "DisableAttachMechanism", "ReduceSignalUsage"];

/// Longest file that is read to know who has made a JVM; they have two kilobytes.
const MAX_RELEASE_BYTES: u64 = 64 << 10;

/// Folders from the library's own to the JVM's, at most: `jre/lib/amd64/server` in JDK 8.
const MAX_DEPTH: usize = 5;

impl ExaminedJvm {
    /// Looks at the JVM in a process, if there is one.
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
            flags: known.map(flags).unwrap_or_default(),
            tracking: known.map_or(Tracking::Unknown, tracking),
            libraries: foreign(modules, home.map_or(&library.path, |(home, _)| home)),
            asking: jcmd::access(known),
        })
    }
}

fn describe(pid: Pid, library: &Module, bias: u64) -> Result<Description<ProcessMemory>, String> {
    let memory = ProcessMemory::open(pid).map_err(|error| error.to_string())?;
    let library = library.read().map_err(|error| error.to_string())?;
    Description::open(memory, &library, bias).map_err(|error| error.to_string())
}

fn names(pid: Pid, library: &Module, bias: u64) -> Names {
    let opened = ProcessMemory::open(pid)
        .and_then(|memory| Ok((memory, library.read()?)))
        .map_err(|error| error.to_string())
        .and_then(|(memory, library)| Jvm::open(memory, &library, bias).map_err(|error| error.to_string()));
    match opened {
        Ok(jvm) => jvm.lacks().map_or(Names::All, Names::Without),
        Err(error) => Names::Unreadable(error),
    }
}

/// Who has made a JVM, as it says itself: runtimes made by `jlink` have no file that would.
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

/// The folder of a JVM, and the text of the file that lies in it and tells of its release. The library is a few folders
/// deeper, as many as the JDK's version and the launcher have it. The kernel tells paths of a process that has another root in the
/// same file system (chroot) from the outer one.
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

/// Who has made a JVM (`IMPLEMENTOR`).
fn vendor(release: &str) -> Option<String> {
    let value = release.lines().find_map(|line| line.strip_prefix("IMPLEMENTOR="))?;
    Some(value.trim().trim_matches('"').to_owned())
}

/// Libraries from elsewhere than the JVM's folder, but for those of the C and C++ runtimes.
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
