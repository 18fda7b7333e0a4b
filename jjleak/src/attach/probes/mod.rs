//! Programs at probe sites and their attachment: by uprobe-multi links if the kernel has them. Otherwise by perf events, which
//! also serve processes whose main thread has ended, because a link is bound to the main thread.

mod bpf;
mod groups;
mod linked;
mod multi;
mod perf;
mod runs;
mod undisturbed;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::thread::JoinHandle;

use aya::Ebpf;
use jjleak_common::cookie::Cookie;
use jjleak_common::process::ProcessSlot;
use nix::libc::ESRCH;

use super::calibration::OWN_PROGRAM;
use super::{Error, Host, Programs, Scope, Target};
use crate::allocators::{Placement, ProbeSite};
use groups::Group;
use multi::{MultiPrograms, Place};

pub use groups::Part;
pub(super) use multi::close as close_links;
pub use runs::{ExitCounts, Measuring, Runs, RunsByPart, Steppings};
pub(crate) use undisturbed::thread_cpu_time;

/// A program that does nothing.
const NOTHING: &str = "bare_enter";

/// Loaded programs and attached probes. Dropping it detaches them.
pub(super) struct Probes {
    programs: Programs,
    /// Programs for uprobe-multi links; `None` if the kernel has none.
    multi: Option<MultiPrograms>,
    placed: Vec<Placed>,
    /// Parts whose probes are detached temporarily.
    resting: Vec<Part>,
    /// Parts that are being detached in the background.
    going: Vec<(Part, JoinHandle<()>)>,
}

/// Probes that were attached together.
struct Placed {
    group: Group,
    scope: Scope,
    links: Links,
}

enum Links {
    Multi(OwnedFd),
    /// One for each site; none after a removed link that could not be replaced.
    PerfEvents(Vec<perf::Link>),
}

impl Probes {
    /// Loads the programs; every map must still be in `ebpf`.
    pub(super) fn load(
        object: &[u8],
        ebpf: &mut Ebpf,
        programs: Programs,
        one_by_one: bool,
    ) -> Result<Self, Error> {
        let multi = if one_by_one { None } else { MultiPrograms::load(object, ebpf, programs.names())? };
        if multi.is_none() {
            if !one_by_one {
                tracing::info!("this kernel has no uprobe-multi links: probes are attached one by one");
            }
            Host::this().check_perf_events()?;
            perf::load(ebpf, programs.names())?;
        }
        Ok(Self { programs, multi, placed: Vec::new(), resting: Vec::new(), going: Vec::new() })
    }

    /// Number of instructions that the verifier processed for the programs not managed by aya.
    pub(super) fn verified_instructions(&self) -> Result<Vec<(&'static str, u32)>, Error> {
        self.multi.as_ref().map_or(Ok(Vec::new()), MultiPrograms::verified_instructions)
    }

    /// Number of runs that the kernel skipped, of these and the object's other programs. The kernel skips a program if one is
    /// already running on that CPU. Since Linux 6.0, uprobes are not affected (5.17 to 5.19 do not count theirs). Programs at
    /// kernel functions are affected, because another task can preempt them (`__bpf_prog_enter_recur` in
    /// kernel/bpf/trampoline.c).
    pub(super) fn missed_runs(&self, ebpf: &Ebpf) -> u64 {
        let others =
            ebpf.programs().filter_map(|(_, program)| Some(bpf::missed_runs(program.fd().ok()?.as_fd())));
        self.multi.iter().map(MultiPrograms::missed_runs).chain(others).sum()
    }

    /// Attaches probes: returns first, so that no entry lacks its return, and frees before allocations. Attaches all of them, or none.
    pub(super) fn attach(&mut self, ebpf: &mut Ebpf, scope: Scope, targets: &[Target]) -> Result<(), Error> {
        let before = self.placed.len();
        let Self { programs, multi, placed, resting, .. } = self;
        let outcome = programs.group(targets).into_iter().try_for_each(|group| {
            let links = if resting.contains(&group.part) {
                Links::NONE
            } else {
                Links::attach(*programs, multi.as_ref(), ebpf, scope, &group)?
            };
            placed.push(Placed { group, scope, links });
            Ok(())
        });
        if outcome.is_err() {
            let undone = self.placed.split_off(before);
            detach(ebpf, undone)?;
        }
        outcome
    }

    /// Binds the probes of a process to another thread, after the thread that they were bound to has ended. Can be repeated after
    /// a failure.
    ///
    /// Links are removed before they are replaced: they still fire while an ended main thread waits for the other threads, and
    /// nothing may be counted twice. Perf events are removed afterwards: they no longer fire, and removing many takes seconds, in
    /// which all frees would be missed.
    pub(super) fn rebind(&mut self, ebpf: &mut Ebpf, slot: ProcessSlot, scope: Scope) -> Result<(), Error> {
        let Self { programs, multi, placed, resting, .. } = self;
        let is_bound =
            |placed: &&mut Placed| matches!(placed.scope, Scope::Process { slot: of, .. } if of == slot);
        multi::close(
            placed.iter_mut().filter(is_bound).filter_map(|placed| placed.links.take_multi()).collect(),
        );
        let mut replaced = Vec::new();
        let outcome = placed.iter_mut().filter(is_bound).try_for_each(|placed| {
            placed.scope = scope;
            if resting.contains(&placed.group.part) {
                return Ok(());
            }
            let links = Links::attach(*programs, multi.as_ref(), ebpf, scope, &placed.group)?;
            replaced.push((placed.group.program, mem::replace(&mut placed.links, links)));
            Ok(())
        });
        for (program, links) in replaced {
            if let Links::PerfEvents(links) = links {
                perf::detach(ebpf, program, links)?;
            }
        }
        outcome
    }

    /// Passes `with` a function that attaches a return probe at an offset of jjleak's own program, for a process; `None` if there
    /// are no uprobe-multi links.
    pub(super) fn try_return<T>(
        &self,
        with: impl FnOnce(&dyn Fn(u64, u32) -> io::Result<OwnedFd>) -> T,
    ) -> Option<T> {
        let returning = self.multi.as_ref()?.get("bare_return").ok()?;
        Some(with(&|offset, process| {
            multi::attach(returning, OWN_PROGRAM.as_ref(), process, true, &[Place::at(offset)])
        }))
    }

    /// Detaches the probes of a file that were attached by this path.
    pub(super) fn detach(&mut self, ebpf: &mut Ebpf, file: &Path) -> Result<(), Error> {
        detach(ebpf, self.placed.extract_if(.., |placed| placed.group.file == file))
    }

    /// Detaches a part of the probes temporarily ([`Self::wake`]), entries before returns, so that hardly any recorded call lacks
    /// its end.
    pub(super) fn rest(&mut self, part: Part) {
        if self.resting.contains(&part) {
            return;
        }
        self.resting.push(part);
        let [entries, returns] = [false, true].map(|at_return| {
            let resting = self
                .placed
                .iter_mut()
                .filter(|placed| placed.group.at_return == at_return && placed.group.part == part);
            resting.filter_map(|placed| placed.links.take_multi()).collect()
        });
        self.going.extend(multi::close_aside(entries, returns).map(|going| (part, going)));
    }

    /// Detaches all probes permanently, including perf events, which takes seconds.
    pub(super) fn take_out(&mut self, ebpf: &mut Ebpf) -> Result<(), Error> {
        self.rest(Part::Allocations);
        self.rest(Part::Frees);
        for Placed { group, links, .. } in &mut self.placed {
            if let Links::PerfEvents(links) = links {
                perf::detach(ebpf, group.program, mem::take(links))?;
            }
        }
        Ok(())
    }

    /// Attaches a part of the probes again, returns before entries. Waits until the previous ones are detached: with two probes
    /// at a site, blocks would be counted twice.
    ///
    /// Fails if the main thread has ended: the perf events that would replace the links cannot be detached quickly.
    pub(super) fn wake(&mut self, part: Part) -> Result<(), Error> {
        for (_, going) in self.going.extract_if(.., |(of, _)| *of == part) {
            // The thread has closed its links even if it panicked.
            let _ = going.join();
        }
        let Self { multi, placed, resting, .. } = self;
        for at_return in [true, false] {
            let out = placed.iter_mut().filter(|placed| {
                let is_out = matches!(&placed.links, Links::PerfEvents(links) if links.is_empty());
                is_out && placed.group.at_return == at_return && placed.group.part == part
            });
            for Placed { group, scope, links } in out {
                let Some(multi) = multi else { continue };
                let link = link(multi.get(group.program)?, *scope, group);
                *links = Links::Multi(link.map_err(|error| Error::wake(*scope, &group.sites, error))?);
            }
        }
        resting.retain(|resting| *resting != part);
        Ok(())
    }

    /// Returns true if probes can be detached and attached quickly. Perf events cannot, and their programs are not measured.
    pub(super) fn are_quick(&self) -> bool {
        let is_slow =
            |placed: &Placed| matches!(&placed.links, Links::PerfEvents(links) if !links.is_empty());
        self.multi.is_some() && !self.placed.iter().any(is_slow)
    }

    /// Removes the probes from processes that they are not bound to. When a probe is unregistered, the kernel visits all
    /// processes that map its file and keeps a breakpoint only if another probe needs it (`register_for_each_vma` in
    /// kernel/events/uprobes.c). Perf events do so themselves, at the first hit.
    pub(super) fn spare_children(&self) {
        let Some(Ok(nothing)) = self.multi.as_ref().map(|multi| multi.get(NOTHING)) else { return };
        let mut files: BTreeMap<&Path, BTreeSet<(u64, u64)>> = BTreeMap::new();
        for placed in &self.placed {
            if is_bound(placed.scope) && matches!(placed.links, Links::Multi(_)) {
                // The kernel refuses two probes at an instruction with different semaphores.
                let places = placed.group.sites.iter().map(|site| (site.offset(), semaphore_of(site)));
                files.entry(&placed.group.file).or_default().extend(places);
            }
        }
        // jjleak's own process carries the probes briefly, which is harmless.
        let own = std::process::id();
        let mut links = Vec::new();
        for (file, places) in files {
            let place = |(offset, semaphore)| Place { semaphore, ..Place::at(offset) };
            let places: Vec<_> = places.into_iter().map(place).collect();
            let link = multi::attach(nothing, file, own, false, &places);
            match link {
                Ok(link) => links.push(link),
                Err(error) => tracing::info!(%error, "children keep the probes in {}", file.display()),
            }
        }
        multi::close(links);
    }
}

impl Links {
    const NONE: Self = Self::PerfEvents(Vec::new());

    /// Attaches the probes of a group.
    fn attach(
        programs: Programs,
        multi: Option<&MultiPrograms>,
        ebpf: &mut Ebpf,
        scope: Scope,
        group: &Group,
    ) -> Result<Self, Error> {
        let program = multi.map(|multi| multi.get(group.program)).transpose()?;
        match program.map(|program| link(program, scope, group)) {
            Some(Ok(link)) => Ok(Self::Multi(link)),
            Some(Err(error)) if !(is_bound(scope) && error.raw_os_error() == Some(ESRCH)) => {
                Err(Error::attach(scope, &group.sites, error))
            }
            // No uprobe-multi links, no main thread, or no process.
            Some(Err(_)) | None => {
                Host::this().check_perf_events()?;
                perf::load(ebpf, programs.names())?;
                Ok(Self::PerfEvents(perf::attach(ebpf, scope, group)?))
            }
        }
    }

    /// Takes the uprobe-multi link, if there is one.
    fn take_multi(&mut self) -> Option<OwnedFd> {
        match mem::replace(self, Self::NONE) {
            Self::Multi(link) => Some(link),
            events @ Self::PerfEvents(_) => {
                *self = events;
                None
            }
        }
    }
}

/// Detaches probes.
fn detach(ebpf: &mut Ebpf, probes: impl IntoIterator<Item = Placed>) -> Result<(), Error> {
    let mut multi = Vec::new();
    for Placed { group, links, .. } in probes {
        match links {
            Links::Multi(link) => multi.push(link),
            Links::PerfEvents(links) => perf::detach(ebpf, group.program, links)?,
        }
    }
    multi::close(multi);
    Ok(())
}

fn link(program: BorrowedFd<'_>, scope: Scope, group: &Group) -> io::Result<OwnedFd> {
    let process = match scope {
        Scope::Process { thread, .. } => thread.number().get(),
        Scope::File => 0,
    };
    let place = |site: &ProbeSite| Place {
        offset: site.offset(),
        cookie: cookie(scope, site).encode(),
        semaphore: semaphore_of(site),
    };
    let places: Vec<_> = group.sites.iter().map(place).collect();
    multi::attach(program, &group.file, process, group.at_return, &places)
}

impl Drop for Probes {
    fn drop(&mut self) {
        let links = self.placed.drain(..).filter_map(|placed| match placed.links {
            Links::Multi(link) => Some(link),
            // Perf events are detached with their program.
            Links::PerfEvents(_) => None,
        });
        multi::close(links.collect());
    }
}

/// File offset of the semaphore of the probe at a site; 0 for none.
fn semaphore_of(site: &ProbeSite) -> u64 {
    site.sample.and_then(|sample| sample.semaphore).unwrap_or(0)
}

/// Cookie of the probe at a site.
const fn cookie(scope: Scope, site: &ProbeSite) -> Cookie {
    let process = match scope {
        Scope::Process { slot, .. } => slot,
        Scope::File => ProcessSlot::OF_WHOEVER_HITS,
    };
    if let Some(sample) = site.sample {
        return Cookie::of_sample(process, sample.number);
    }
    let Placement { cfa_words, inside, .. } = site.placement;
    Cookie { process, signature: site.signature, cfa_words, inside }
}

const fn is_bound(scope: Scope) -> bool {
    matches!(scope, Scope::Process { .. })
}
