//! Probes at the functions with which JVMs free code. Walks through a JVM's code are kept only if freed code is counted: other code can
//! get its address.

use std::collections::HashSet;
use std::path::Path;

use aya::Ebpf;
use aya::programs::uprobe::{UProbeAttachLocation, UProbeScope};
use aya::programs::{ProgramError, UProbe};

use super::Error;
use crate::processes::FileVersion;

const PROGRAM: &str = "code_freed";

/// The libraries of JVMs that have such a probe.
#[derive(Debug, Default)]
pub(super) struct FreedCodeProbes(HashSet<FileVersion>);

impl FreedCodeProbes {
    /// Attaches a probe, unless the library has it: `path` leads to the library, `offset` is that of the function in the file. A probe
    /// stays until the object is dropped: it is hit for each method that a JVM recompiles, not for each allocation.
    pub(super) fn attach(
        &mut self,
        ebpf: &mut Ebpf,
        library: FileVersion,
        path: &Path,
        offset: u64,
    ) -> Result<(), Error> {
        if self.0.contains(&library) {
            return Ok(());
        }
        let lacks = Error::ObjectLacks { what: "uprobe program", name: PROGRAM };
        let program: &mut UProbe =
            ebpf.program_mut(PROGRAM).and_then(|program| program.try_into().ok()).ok_or(lacks)?;
        match program.load() {
            Ok(()) | Err(ProgramError::AlreadyLoaded) => {}
            Err(error) => return Err(Error::verify(PROGRAM, error)),
        }
        // For all processes: the kernel would report the calls of one thread alone, and any thread of a JVM can free code.
        let attached =
            program.attach(UProbeAttachLocation::AbsoluteOffset(offset), path, UProbeScope::AllProcesses);
        attached.map_err(|source| Error::Attach {
            places: format!("the function that frees code (file offset {offset:#x})"),
            source: Box::new(source),
        })?;
        self.0.insert(library);
        Ok(())
    }
}
