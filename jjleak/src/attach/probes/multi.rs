//! Probes by uprobe-multi links: one link carries all sites of a role in a file. The kernel removes them together, in the time of
//! a single perf event.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use aya::Ebpf;
use nix::libc::{EBADF, EINVAL};

use super::super::Error;
use super::NOTHING;
use super::bpf::{self, MultiLink};
use super::linked::{LinkedObject, Rare, load_together};
use super::runs::Runs;
use super::undisturbed;

/// Programs loaded on first use: only jemalloc has functions that resize a block in place.
const RARE: [&str; 1] = ["resize_in_place_enter"];

/// Maximum number of links closed in parallel: each waits until no CPU runs its program, and the waits can overlap. Each takes a
/// thread and a process, and services often have low limits of both.
const CLOSED_AT_ONCE: usize = 8;
/// Longer than nearly all allocation calls take, and than the kernel needs to remove a few breakpoints.
const IN_PROGRESS: Duration = Duration::from_millis(2);

/// Programs by name.
pub(super) struct MultiPrograms {
    loaded: BTreeMap<&'static str, OwnedFd>,
    /// Programs loaded on first use.
    rare: BTreeMap<&'static str, Rare>,
}

impl MultiPrograms {
    /// Loads programs of the object whose maps `ebpf` has created; `None` if the kernel's uprobe-multi links cannot be limited to
    /// one process.
    pub(super) fn load(
        object: &[u8],
        ebpf: &Ebpf,
        names: &'static [&'static str],
    ) -> Result<Option<Self>, Error> {
        let object = LinkedObject::new(object, ebpf)?;
        let nothing = match object.program(NOTHING)?.load() {
            Ok(nothing) => nothing,
            // Kernels without uprobe-multi reject the attach type.
            Err(refused) if refused.log.is_empty() => return Ok(None),
            Err(refused) => return Err(refused.of(NOTHING)),
        };
        if !keeps_to_process(nothing.as_fd()) {
            return Ok(None);
        }
        let (rare, usual): (Vec<_>, Vec<_>) =
            names.iter().copied().filter(|name| *name != NOTHING).partition(|name| RARE.contains(name));
        let linked = |names: Vec<&'static str>| -> Result<Vec<_>, Error> {
            names.into_iter().map(|name| object.program(name)).collect()
        };
        let rare = linked(rare)?.into_iter().map(|program| (program.name(), Rare::new(program))).collect();
        let mut loaded = load_together(&linked(usual)?)?;
        loaded.insert(NOTHING, nothing);
        Ok(Some(Self { loaded, rare }))
    }

    /// Number of instructions that the verifier processed for each program. Loads programs that were not needed before.
    pub(super) fn verified_instructions(&self) -> Result<Vec<(&'static str, u32)>, Error> {
        let names = self.loaded.keys().chain(self.rare.keys());
        let programs: Vec<_> =
            names.map(|name| Ok((*name, self.get(name)?))).collect::<Result<_, Error>>()?;
        let counted = |(name, program)| Some((name, bpf::verified_instructions(program)?));
        Ok(programs.into_iter().filter_map(counted).collect())
    }

    /// A program, loaded on first use if it is rare.
    pub(super) fn get(&self, name: &'static str) -> Result<BorrowedFd<'_>, Error> {
        match (self.loaded.get(name), self.rare.get(name)) {
            (Some(program), _) => Ok(program.as_fd()),
            (None, Some(rare)) => rare.get(),
            (None, None) => Err(Error::ObjectLacks { what: "uprobe program", name }),
        }
    }

    /// Number and duration of runs of each program, as far as measured.
    pub(super) fn runs(&self) -> impl Iterator<Item = (&'static str, Runs)> {
        self.programs().filter_map(|(name, program)| {
            let (count, time_ns) = bpf::runs(program.as_fd())?;
            Some((name, Runs { count, time_ns }))
        })
    }

    /// Number of runs that the kernel skipped.
    pub(super) fn missed_runs(&self) -> u64 {
        self.programs().map(|(_, program)| bpf::missed_runs(program.as_fd())).sum()
    }

    /// Loaded programs.
    fn programs(&self) -> impl Iterator<Item = (&'static str, &OwnedFd)> {
        let rare = self.rare.iter().filter_map(|(name, rare)| Some((name, rare.loaded()?)));
        self.loaded.iter().chain(rare).map(|(name, program)| (*name, program))
    }
}

/// An instruction to probe.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// File offset.
    pub(super) offset: u64,
    pub(super) cookie: u64,
    /// File offset of the semaphore; 0 for none.
    pub(super) semaphore: u64,
}

impl Place {
    /// An instruction whose program needs no cookie.
    pub(super) const fn at(offset: u64) -> Self {
        Self { offset, cookie: 0, semaphore: 0 }
    }
}

/// Attaches a program to places in a file. A process is identified by its main thread.
pub(super) fn attach(
    program: BorrowedFd<'_>,
    file: &Path,
    process: u32,
    at_return: bool,
    places: &[Place],
) -> io::Result<OwnedFd> {
    let column = |value: fn(&Place) -> u64| places.iter().map(value).collect::<Vec<_>>();
    let (offsets, cookies) = (column(|place| place.offset), column(|place| place.cookie));
    let mut semaphores = column(|place| place.semaphore);
    if semaphores.iter().all(|semaphore| *semaphore == 0) {
        semaphores.clear();
    }
    let file = CString::new(file.as_os_str().as_bytes())?;
    let (offsets, cookies, semaphores) = (&offsets, &cookies, &semaphores);
    bpf::link(program, MultiLink { file: &file, offsets, cookies, semaphores, process, at_return })
}

/// Longer than a process takes from its start to its exec, except on a very busy machine.
const COPIES_CLOSED: Duration = Duration::from_secs(1);

/// Closes links, which detaches their probes.
pub(in crate::attach) fn close(mut links: Vec<OwnedFd>) {
    while !links.is_empty() {
        let rest = links.split_off(links.len().min(CLOSED_AT_ONCE));
        thread::scope(|scope| {
            for link in links {
                // If no thread can be created, the link is dropped here.
                let _ = thread::Builder::new().spawn_scoped(scope, || close_whole(link));
            }
        });
        links = rest;
    }
}

/// Closes a link, and waits until no copy of its descriptor is left. If another thread is just starting a process, that process has a
/// copy of each descriptor until it executes its program, and the probes would stay as long.
fn close_whole(link: OwnedFd) {
    let number = bpf::link_number(link.as_fd());
    undisturbed::close(link);
    let Some(number) = number else { return };
    let begin = Instant::now();
    while let Some(copy) = bpf::link_of_number(number)
        && begin.elapsed() < COPIES_CLOSED
    {
        undisturbed::close(copy);
        thread::sleep(Duration::from_millis(1));
    }
}

/// Detaches the first links, then the second, in the background. The kernel removes breakpoints at once, and then waits up to a
/// tenth of a second until no CPU runs the program. Waiting for that would leave the second links' breakpoints in place
/// meanwhile. Attaching them again must wait for the thread.
pub(in crate::attach) fn close_aside(first: Vec<OwnedFd>, second: Vec<OwnedFd>) -> Option<JoinHandle<()>> {
    // If no thread can be created, the links are dropped here.
    let closing = thread::Builder::new().spawn(move || {
        thread::scope(|scope| {
            let (sender, has_begun) = mpsc::channel();
            let _ = thread::Builder::new().spawn_scoped(scope, move || {
                let _ = sender.send(());
                close(first);
            });
            // On a busy machine, a thread can start late. If it could not be created, the dropped sender ends the wait.
            let _ = has_begun.recv();
            thread::sleep(IN_PROGRESS);
            close(second);
        });
    });
    closing.ok()
}

/// Returns true if the kernel's links can be limited to a process. Early kernels limited them to one thread; fixed kernels reject
/// a negative PID before they check the file (`bpf_uprobe_multi_link_attach` in `kernel/trace/bpf_trace.c`). A folder cannot be
/// probed.
fn keeps_to_process(program: BorrowedFd<'_>) -> bool {
    let refusal = |process| {
        let link = MultiLink {
            file: c"/",
            offsets: &[0],
            cookies: &[0],
            semaphores: &[],
            process,
            at_return: false,
        };
        bpf::link(program, link).err().and_then(|error| error.raw_os_error())
    };
    refusal(0) == Some(EBADF) && refusal(u32::MAX) == Some(EINVAL)
}
