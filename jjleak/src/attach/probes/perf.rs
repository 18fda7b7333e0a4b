//! Probes by perf events, one for each site. The kernel closes them one after the other and waits each time until no CPU runs the
//! probe: about 0.1 s.

use std::ffi::CString;
use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use aya::Ebpf;
use aya::programs::ProgramError;
use aya::programs::UProbe;
use aya::programs::uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeLinkId, UProbeScope};
use perf_event::Builder;
use perf_event::events::Dynamic;

use super::super::{Error, Scope};
use super::{Group, bpf, cookie, semaphore_of};
use crate::allocators::ProbeSite;

/// A probe at a site.
pub(super) enum Link {
    Plain(UProbeLinkId),
    /// With a semaphore, which aya does not support. Closing the descriptor detaches it.
    Counted(OwnedFd),
}

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
pub(super) fn attach(ebpf: &mut Ebpf, scope: Scope, group: &Group) -> Result<Vec<Link>, Error> {
    let program = uprobe(ebpf, group.program)?;
    let mut links = Vec::new();
    for site in &group.sites {
        match attach_one(program, scope, &group.file, site) {
            Ok(link) => links.push(link),
            Err(error) => {
                detach(ebpf, group.program, links)?;
                return Err(error);
            }
        }
    }
    Ok(links)
}

fn attach_one(program: &mut UProbe, scope: Scope, file: &Path, site: &ProbeSite) -> Result<Link, Error> {
    let thread = match scope {
        Scope::Process { thread, .. } => Some(thread.number()),
        Scope::File => None,
    };
    let cookie = cookie(scope, site).encode();
    let sites = std::slice::from_ref(site);
    let semaphore = semaphore_of(site);
    if semaphore != 0 {
        let program = program.fd().map_err(|source| Error::attach(scope, sites, source))?;
        return attach_counted(program.as_fd(), thread, file, site.offset(), semaphore, cookie)
            .map(Link::Counted)
            .map_err(|source| Error::attach(scope, sites, source));
    }
    let location = UProbeAttachLocation::AbsoluteOffset(site.offset());
    let point = UProbeAttachPoint { location, cookie: Some(cookie) };
    let probed = thread.map_or(UProbeScope::AllProcesses, UProbeScope::OneProcess);
    program.attach(point, file, probed).map(Link::Plain).map_err(|source| Error::attach(scope, sites, source))
}

/// Attaches a program to an offset of a file. The kernel raises the semaphore until the link is closed.
fn attach_counted(
    program: BorrowedFd<'_>,
    thread: Option<NonZeroU32>,
    file: &Path,
    offset: u64,
    semaphore: u64,
    cookie: u64,
) -> io::Result<OwnedFd> {
    let path = CString::new(file.as_os_str().as_bytes())?;
    let mut probe = Dynamic::builder("uprobe")?;
    for (field, value) in [("retprobe", 0), ("ref_ctr_offset", semaphore)] {
        probe.field(field, value).map_err(io::Error::other)?;
    }
    let mut event = Builder::new(probe.build().map_err(io::Error::other)?);
    // The file and the offset in it (perf_event_open(2)).
    event.attrs_mut().config1 = path.as_ptr() as u64;
    event.attrs_mut().config2 = offset;
    match thread {
        Some(thread) => event.observe_pid(thread.get().cast_signed()).any_cpu(),
        // The program runs on all CPUs: the event belongs to one because it must.
        None => event.any_pid().one_cpu(0),
    };
    let mut event = event.build()?;
    event.enable()?;
    bpf::link_event(program, &event, cookie)
}

/// Detaches probes.
pub(super) fn detach(ebpf: &mut Ebpf, program: &'static str, links: Vec<Link>) -> Result<(), Error> {
    let program = uprobe(ebpf, program)?;
    for link in links {
        match link {
            // A probe that cannot be detached now is detached with the object.
            Link::Plain(link) => drop(program.detach(link)),
            Link::Counted(link) => drop(link),
        }
    }
    Ok(())
}

/// Finds a uprobe program of the object.
fn uprobe<'a>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut UProbe, Error> {
    ebpf.program_mut(name)
        .and_then(|program| program.try_into().ok())
        .ok_or(Error::ObjectLacks { what: "uprobe program", name })
}
