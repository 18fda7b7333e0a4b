//! Probes by uprobe-multi links: one link carries all sites of a role in a file. The kernel removes them together, in
//! the time that a single perf event takes.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use aya::Ebpf;
use nix::libc::{EBADF, EINVAL};

use super::super::Error;
use super::NOTHING;
use super::bpf::{self, MultiLink};
use super::linked::{LinkedObject, Rare, load_together};
use super::runs::Runs;
use super::undisturbed;

/// Programs that are not loaded before a site wants them: only jemalloc has functions that change a block's size in its place.
const RARE: [&str; 1] = ["resize_in_place_enter"];

/// Links that are closed at a time: each waits until no CPU runs its program any more, and they can wait together. Each takes a
/// thread and a process, of which a service has few.
const CLOSED_AT_ONCE: usize = 8;
/// Longer than all but very few allocation calls take, and than the kernel takes to remove a few breakpoints.
const IN_PROGRESS: Duration = Duration::from_millis(2);

/// The loaded programs, by name.
pub(super) struct MultiPrograms {
    loaded: BTreeMap<&'static str, OwnedFd>,
    /// Those that are loaded when a site wants them.
    rare: BTreeMap<&'static str, Rare>,
}

impl MultiPrograms {
    /// Loads programs of the object that `ebpf` has made the maps of; `None` when the kernel has no uprobe-multi that
    /// keeps to one process.
    pub(super) fn load(
        object: &[u8],
        ebpf: &Ebpf,
        names: &'static [&'static str],
    ) -> Result<Option<Self>, Error> {
        let object = LinkedObject::new(object, ebpf)?;
        let nothing = match object.program(NOTHING)?.load() {
            Ok(nothing) => nothing,
            // Kernels without it refuse the attach type.
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

    /// How many instructions the verifier has followed in each. Loads those that were not needed before.
    pub(super) fn verified_instructions(&self) -> Result<Vec<(&'static str, u32)>, Error> {
        let names = self.loaded.keys().chain(self.rare.keys());
        let programs: Vec<_> =
            names.map(|name| Ok((*name, self.get(name)?))).collect::<Result<_, Error>>()?;
        let counted = |(name, program)| Some((name, bpf::verified_instructions(program)?));
        Ok(programs.into_iter().filter_map(counted).collect())
    }

    /// A program, which is loaded now if it is a rare one.
    pub(super) fn get(&self, name: &'static str) -> Result<BorrowedFd<'_>, Error> {
        match (self.loaded.get(name), self.rare.get(name)) {
            (Some(program), _) => Ok(program.as_fd()),
            (None, Some(rare)) => rare.get(),
            (None, None) => Err(Error::ObjectLacks { what: "uprobe program", name }),
        }
    }

    /// How often each has run and how long that took, as far as it was measured.
    pub(super) fn runs(&self) -> impl Iterator<Item = (&'static str, Runs)> {
        self.programs().filter_map(|(name, program)| {
            let (count, time_ns) = bpf::runs(program.as_fd())?;
            Some((name, Runs { count, time_ns }))
        })
    }

    /// How often the kernel has not run one of them that should have.
    pub(super) fn missed_runs(&self) -> u64 {
        self.programs().map(|(_, program)| bpf::missed_runs(program.as_fd())).sum()
    }

    /// Those that are loaded.
    fn programs(&self) -> impl Iterator<Item = (&'static str, &OwnedFd)> {
        let rare = self.rare.iter().filter_map(|(name, rare)| Some((name, rare.loaded()?)));
        self.loaded.iter().chain(rare).map(|(name, program)| (*name, program))
    }
}

/// Attaches a program to sites of a file, given by offset and cookie. A process is bound by its main thread.
pub(super) fn attach(
    program: BorrowedFd<'_>,
    file: &Path,
    process: u32,
    at_return: bool,
    sites: &[(u64, u64)],
) -> io::Result<OwnedFd> {
    let (offsets, cookies): (Vec<_>, Vec<_>) = sites.iter().copied().unzip();
    let file = CString::new(file.as_os_str().as_bytes())?;
    bpf::link(program, MultiLink { file: &file, offsets: &offsets, cookies: &cookies, process, at_return })
}

/// Detaches what the links carry.
pub(in crate::attach) fn close(mut links: Vec<OwnedFd>) {
    while !links.is_empty() {
        let rest = links.split_off(links.len().min(CLOSED_AT_ONCE));
        thread::scope(|scope| {
            for link in links {
                // Where no thread can be made, the link is dropped here.
                let _ = thread::Builder::new().spawn_scoped(scope, || undisturbed::close(link));
            }
        });
        links = rest;
    }
}

/// Detaches what these links carry, and then what those do, while others go on. The kernel takes breakpoints out at once, and
/// then waits, for up to a tenth of a second, until nobody can be in a program any more: whoever waited for that would leave
/// the other breakpoints where they are meanwhile. Whoever wants to have them in again has to wait.
pub(in crate::attach) fn close_aside(first: Vec<OwnedFd>, second: Vec<OwnedFd>) -> Option<JoinHandle<()>> {
    // Where no thread can be made, the links are dropped here.
    let closing = thread::Builder::new().spawn(move || {
        thread::scope(|scope| {
            let (sender, has_begun) = mpsc::channel();
            let _ = thread::Builder::new().spawn_scoped(scope, move || {
                let _ = sender.send(());
                close(first);
            });
            // On a busy machine, a thread can begin late. Of one that could not be made, this is told, too.
            let _ = has_begun.recv();
            thread::sleep(IN_PROGRESS);
            close(second);
        });
    });
    closing.ok()
}

/// Whether the kernel has links that keep to the process they are bound to. At first they kept to one thread; the kernels
/// that were mended refuse a negative PID before they look at the file (`bpf_uprobe_multi_link_attach` in
/// `kernel/trace/bpf_trace.c`). A folder cannot be probed.
fn keeps_to_process(program: BorrowedFd<'_>) -> bool {
    let refusal = |process| {
        let link = MultiLink { file: c"/", offsets: &[0], cookies: &[0], process, at_return: false };
        bpf::link(program, link).err().and_then(|error| error.raw_os_error())
    };
    refusal(0) == Some(EBADF) && refusal(u32::MAX) == Some(EINVAL)
}
