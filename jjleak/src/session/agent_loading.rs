//! Makes a running JVM load the library that draws samples, on request.

use std::path::Path;

use crate::jcmd::{self, Access, Agent, Question};

use crate::jvm::{self, Memory, ProcessMemory};
use crate::processes::{Mapping, ModuleFiles, ModuleTable, Pid, Process};

/// Reason why a process has not loaded the library that draws samples.
#[derive(Debug, thiserror::Error)]
#[error("process {pid} has not loaded {library}: {reason}")]
pub struct NotLoaded {
    /// The process.
    pub pid: Pid,
    /// Path of the library.
    pub library: String,
    /// Its answer, or the reason why it was not asked.
    pub reason: String,
}

/// Exported variable of the library: a number of redirected imports, and one of other imports of the same names, of 4 bytes each.
const IMPORTS: &str = "jjleak_imports";

/// Places in all libraries that call malloc's functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Coverage {
    /// Those that call the library.
    pub(super) sampled: u32,
    /// Those that lead elsewhere, such as to a library's own malloc.
    pub(super) others: u32,
}

/// Makes the JVM in a process load a library. Blocks. Returns what it samples; `None` if it was preloaded, and all is sampled.
pub(super) fn load(pid: Pid, agent: &Agent) -> Result<Option<Coverage>, NotLoaded> {
    let failed = |reason| NotLoaded { pid, library: agent.library.clone(), reason };
    ask(pid, agent).map_err(failed)?;
    Ok(coverage(pid, Path::new(&agent.library)).filter(|coverage| coverage.sampled > 0))
}

/// The mapped files of a process.
fn modules(pid: Pid) -> Result<(Vec<Mapping>, ModuleTable), String> {
    let mappings = Mapping::all(pid).map_err(|error| error.to_string())?;
    let mut modules = ModuleTable::default();
    modules.refresh(&mut ModuleFiles::default(), pid, &mappings);
    Ok((mappings, modules))
}

fn coverage(pid: Pid, library: &Path) -> Option<Coverage> {
    let (mappings, modules) = modules(pid).ok()?;
    let code = mappings.iter().find(|mapping| mapping.executable && mapping.path == library)?;
    let located = modules.find(code.addresses.start)?;
    let bias = code.addresses.start.wrapping_sub(located.address?);
    let at = modules.get(located.module).exported_word(IMPORTS)?.wrapping_add(bias);
    let both = ProcessMemory::open(pid).ok()?.number(at, 8)?;
    let half = |number: u64| u32::try_from(number & u64::from(u32::MAX)).ok();
    Some(Coverage { sampled: half(both)?, others: half(both >> 32)? })
}

fn ask(pid: Pid, agent: &Agent) -> Result<(), String> {
    let process = Process::open(pid).map_err(|error| error.to_string())?;
    let (mappings, modules) = modules(pid)?;
    let (library, bias) =
        jvm::library(&mappings, &modules).ok_or("it is no JVM, and nothing is loaded into other programs")?;
    let access: Access =
        jcmd::access_of(pid, library, bias, Question::LoadAgent).map_err(|unfit| unfit.to_string())?;
    jcmd::load(&process, access, agent)
}
