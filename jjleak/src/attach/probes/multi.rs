//! Probes by uprobe-multi links: one link carries all sites of a role in a file. The kernel removes them together, in
//! the time that a single perf event takes.

use std::collections::{BTreeMap, HashSet};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use aya::Ebpf;
use aya::maps::{Map, MapData};
use aya_obj::Object;
use nix::libc::{EBADF, EINVAL};

use super::super::Error;
use super::bpf::{self, MultiLink};
use super::runs::Runs;

/// Links that are closed at a time: each waits until no CPU runs its program any more, and they can wait together.
const CLOSED_AT_ONCE: usize = 16;
/// Longer than all but very few allocation calls take, and than the kernel takes to remove a few breakpoints.
const IN_PROGRESS: Duration = Duration::from_millis(2);

/// The loaded programs, by name.
pub(super) struct MultiPrograms(BTreeMap<&'static str, OwnedFd>);

impl MultiPrograms {
    /// Loads programs of the object that `ebpf` has made the maps of; `None` when the kernel has no uprobe-multi that
    /// keeps to one process.
    pub(super) fn load(
        object: &[u8],
        ebpf: &Ebpf,
        names: &'static [&'static str],
    ) -> Result<Option<Self>, Error> {
        let mut object = Object::parse(object).map_err(|source| Error::Load(Box::new(source.into())))?;
        let types = match aya::features().btf() {
            Some(features) => object
                .fixup_and_sanitize_btf(features)
                .map_err(|source| Error::Load(Box::new(source.into())))?
                .map(|types| bpf::load_types(&types.to_bytes()))
                .transpose()
                .map_err(Error::Types)?,
            None => None,
        };
        link_object(&mut object, ebpf)?;
        let mut programs = BTreeMap::new();
        for &name in names {
            let lacks = Error::ObjectLacks { what: "uprobe program", name };
            let Some(program) = object.programs.get(name) else { return Err(lacks) };
            let Some(code) = object.functions.get(&program.function_key()) else { return Err(lacks) };
            match bpf::load_program(name, program, code, types.as_ref().map(AsFd::as_fd)) {
                Ok(loaded) => programs.insert(name, loaded),
                // Kernels without it refuse the attach type.
                Err(refused) if programs.is_empty() && refused.log.is_empty() => return Ok(None),
                Err(refused) => {
                    tracing::debug!("verifier log of {name}:\n{}", refused.log);
                    return Err(Error::Verify { name, source: refused.error });
                }
            };
            if programs.len() == 1 && !keeps_to_process(programs[name].as_fd()) {
                return Ok(None);
            }
        }
        Ok(Some(Self(programs)))
    }

    /// How many instructions the verifier has followed in each.
    pub(super) fn verified_instructions(&self) -> impl Iterator<Item = (&'static str, u32)> {
        self.0
            .iter()
            .filter_map(|(name, program)| Some((*name, bpf::verified_instructions(program.as_fd())?)))
    }

    /// Some of the programs, for another thread.
    pub(super) fn only(&self, names: &[&'static str]) -> Option<Self> {
        let copy = |name: &&'static str| Some((*name, self.0.get(name)?.try_clone().ok()?));
        names.iter().map(copy).collect::<Option<_>>().map(Self)
    }

    /// How often each has run and how long that took, as far as it was measured.
    pub(super) fn runs(&self) -> impl Iterator<Item = (&'static str, Runs)> {
        let runs = |program: &OwnedFd| bpf::runs(program.as_fd());
        self.0.iter().filter_map(move |(name, program)| {
            let (count, time_ns) = runs(program)?;
            Some((*name, Runs { count, time_ns }))
        })
    }

    /// How often the kernel has not run one of them that should have.
    pub(super) fn missed_runs(&self) -> u64 {
        self.0.values().map(|program| bpf::missed_runs(program.as_fd())).sum()
    }

    /// Attaches a program to sites of a file, given by offset and cookie. A process is bound by its main thread.
    pub(super) fn attach(
        &self,
        name: &'static str,
        file: &Path,
        process: u32,
        at_return: bool,
        sites: &[(u64, u64)],
    ) -> io::Result<OwnedFd> {
        let program = self.0.get(name).ok_or(io::ErrorKind::NotFound)?;
        let (offsets, cookies): (Vec<_>, Vec<_>) = sites.iter().copied().unzip();
        let file = CString::new(file.as_os_str().as_bytes())?;
        bpf::link(
            program.as_fd(),
            MultiLink { file: &file, offsets: &offsets, cookies: &cookies, process, at_return },
        )
    }
}

/// Detaches what the links carry.
pub(in crate::attach) fn close(mut links: Vec<OwnedFd>) {
    while !links.is_empty() {
        let rest = links.split_off(links.len().min(CLOSED_AT_ONCE));
        thread::scope(|scope| {
            for link in links {
                // Where no thread can be made, the link is dropped here.
                let _ = thread::Builder::new().spawn_scoped(scope, || drop(link));
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

/// Lets the code of an object lead to the maps that aya has made, and to the functions that it calls.
fn link_object(object: &mut Object, ebpf: &Ebpf) -> Result<(), Error> {
    let text: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
    let maps = object.maps.clone();
    let made = |name: &str| -> Option<RawFd> { Some(data(ebpf.map(name)?)?.fd().as_fd().as_raw_fd()) };
    let maps = maps.iter().filter_map(|(name, map)| Some((name.as_str(), made(name)?, map)));
    object.relocate_maps(maps, &text).map_err(|source| Error::Load(Box::new(source.into())))?;
    object.relocate_calls(&text).map_err(|source| Error::Load(Box::new(source.into())))
}

/// The kinds of maps that our object has.
fn data(map: &Map) -> Option<&MapData> {
    match map {
        Map::Array(data)
        | Map::HashMap(data)
        | Map::PerCpuArray(data)
        | Map::Queue(data)
        | Map::RingBuf(data)
        // Task storage.
        | Map::Unsupported(data) => Some(data),
        _ => None,
    }
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
