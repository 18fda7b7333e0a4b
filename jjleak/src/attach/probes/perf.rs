//! Probes by perf events, one for each site. The kernel closes them one after the other and waits each time until no CPU runs the
//! probe: about 0.1 s.

use aya::Ebpf;
use aya::programs::ProgramError;
use aya::programs::UProbe;
use aya::programs::uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeLinkId, UProbeScope};

use super::super::{Error, Scope};
use super::{Group, cookie};
use crate::allocators::ProbeSite;

/// Loads programs that are not loaded yet.
pub(super) fn load(ebpf: &mut Ebpf, names: &'static [&'static str]) -> Result<(), Error> {
    for name in names {
        match uprobe(ebpf, name)?.load() {
            Ok(()) | Err(ProgramError::AlreadyLoaded) => {}
            Err(error) => return Err(Error::verify(name, error)),
        }
    }
    Ok(())
}

/// Attaches a probe to each site, or to none.
pub(super) fn attach(ebpf: &mut Ebpf, scope: Scope, group: &Group) -> Result<Vec<UProbeLinkId>, Error> {
    let probed = match scope {
        Scope::Process { thread, .. } => UProbeScope::OneProcess(thread.number()),
        Scope::File => UProbeScope::AllProcesses,
    };
    let program = uprobe(ebpf, group.program)?;
    let mut attach = |site: &ProbeSite| {
        let location = UProbeAttachLocation::AbsoluteOffset(site.offset());
        let point = UProbeAttachPoint { location, cookie: Some(cookie(scope, site).encode()) };
        program
            .attach(point, &group.file, probed)
            .map_err(|source| Error::attach(scope, std::slice::from_ref(site), source))
    };
    let mut links = Vec::new();
    for site in &group.sites {
        match attach(site) {
            Ok(link) => links.push(link),
            Err(error) => {
                detach(ebpf, group.program, links)?;
                return Err(error);
            }
        }
    }
    Ok(links)
}

/// Detaches probes.
pub(super) fn detach(ebpf: &mut Ebpf, program: &'static str, links: Vec<UProbeLinkId>) -> Result<(), Error> {
    let program = uprobe(ebpf, program)?;
    for link in links {
        // A probe that cannot be detached now is detached with the object.
        let _ = program.detach(link);
    }
    Ok(())
}

/// Finds a uprobe program of the object.
fn uprobe<'a>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut UProbe, Error> {
    ebpf.program_mut(name)
        .and_then(|program| program.try_into().ok())
        .ok_or(Error::ObjectLacks { what: "uprobe program", name })
}
