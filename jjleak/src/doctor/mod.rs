//! What jjleak will be able to tell of a process, and what would let it tell more. Nothing is attached or changed.
//!
//! In: a process, and what this host lets us do. Out: an [`Examination`], and [`text`] of it.

mod advice;
mod generated;
mod jvm;
mod module;
mod packages;
mod symbols;
mod text;

use std::collections::BTreeMap;
use std::path::Path;

use crate::attach::{Check, Host};
use crate::processes::{self, Located, Mapping, ModuleFiles, ModuleId, ModuleTable, Narrow, Pid, Process};

pub use advice::{Advice, advise};
pub use generated::{Generated, NamesFrom};
pub use jvm::{ExaminedJvm, Names, Tracking};
pub use module::{Examined, Unwinding};
pub use packages::Packages;
pub use symbols::{DebugFile, Symbols};
pub use text::text;

/// What was found.
#[derive(Debug)]
pub struct Examination {
    /// What the kernel and the privileges allow.
    pub host: Vec<Check>,
    /// Who was examined.
    pub process: Option<ExaminedProcess>,
}

/// What was found of a process.
#[derive(Debug)]
pub struct ExaminedProcess {
    /// Who it is.
    pub process: Process,
    /// The files whose code it maps, in the order of their addresses.
    pub modules: Vec<Examined>,
    /// Files that could not be opened, with the reason.
    pub unopened: BTreeMap<String, String>,
    /// Code in no file, which the program has generated; `None` when there is none.
    pub generated: Option<Generated>,
    /// The JVM that it is, if it is one.
    pub jvm: Option<ExaminedJvm>,
    /// What it runs, if that is no 64-bit program.
    pub narrow: Option<Narrow>,
    /// Whether its files are those that the paths lead to here: it is in no other mount namespace.
    pub shares_files: bool,
}

impl Examination {
    /// Looks at the host, and at a process if one is named.
    pub fn new(pid: Option<Pid>) -> Result<Self, processes::Error> {
        Ok(Self { host: Host::this().checks(), process: pid.map(ExaminedProcess::open).transpose()? })
    }

    /// The first thing without which nothing can be profiled.
    #[must_use]
    pub fn missing(&self) -> Option<crate::attach::Missing> {
        self.host.iter().filter(|check| check.is_required).find_map(|check| check.outcome.err())
    }
}

impl ExaminedProcess {
    fn open(pid: Pid) -> Result<Self, processes::Error> {
        let process = Process::open(pid)?;
        let mappings = Mapping::all(pid)?;
        let mut table = ModuleTable::default();
        table.refresh(&mut ModuleFiles::default(), pid, &mappings);
        let modules = table.iter().map(|(id, module)| Examined::new(module, &addends(id, &mappings, &table)));
        let modules = modules.collect();
        let unopened = table.unopened();
        Ok(Self {
            modules,
            unopened: unopened.map(|it| (it.path.display().to_string(), it.error.to_string())).collect(),
            generated: Generated::find(&process, &mappings),
            jvm: ExaminedJvm::find(pid, &mappings, &table),
            narrow: Narrow::of(pid),
            shares_files: is_same_namespace(pid),
            process,
        })
    }

    /// Whether anything of it can be profiled.
    #[must_use]
    pub fn has_allocator(&self) -> bool {
        self.modules.iter().any(|module| !module.allocators.is_empty())
    }
}

/// By what offsets in a file become addresses, for each mapping of its code.
fn addends(id: ModuleId, mappings: &[Mapping], modules: &ModuleTable) -> Vec<Option<u64>> {
    let code = mappings.iter().filter(|mapping| mapping.executable);
    let located = code.filter_map(|mapping| modules.find(mapping.addresses.start));
    let addend = |located: Located| Some(located.address?.wrapping_sub(located.offset));
    located.filter(|located| located.module == id).map(addend).collect()
}

fn is_same_namespace(pid: Pid) -> bool {
    let link = |path: &Path| std::fs::read_link(path).ok();
    link(&pid.proc_file("ns/mnt")) == link(Path::new("/proc/self/ns/mnt"))
}
