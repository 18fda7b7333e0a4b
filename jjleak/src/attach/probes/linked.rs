//! Links the object's programs with their maps and loads them.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashSet};
use std::num::NonZero;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use aya::Ebpf;
use aya::maps::{Map, MapData};
use aya_obj::{Function, Object, Program};

use super::super::Error;
use super::bpf::{self, Refused};

/// Maximum number of programs loaded in parallel: each occupies the verifier for some tens of milliseconds.
const LOADED_AT_ONCE: usize = 8;

/// The object, whose code refers to the maps that aya has created.
pub(super) struct LinkedObject {
    object: Object,
    leads_to: Arc<LeadsTo>,
}

/// Targets of the descriptor numbers in a program's code. They are kept open because aya closes its own descriptors when a map is
/// taken from it and dropped.
struct LeadsTo {
    types: Option<OwnedFd>,
    _maps: Vec<OwnedFd>,
}

impl LinkedObject {
    /// Links the object with the maps that `ebpf` has created.
    pub(super) fn new(object: &[u8], ebpf: &Ebpf) -> Result<Self, Error> {
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
        let maps = link(&mut object, ebpf)?;
        Ok(Self { object, leads_to: Arc::new(LeadsTo { types, _maps: maps }) })
    }

    /// A program of the object.
    pub(super) fn program(&self, name: &'static str) -> Result<Linked, Error> {
        let lacks = || Error::ObjectLacks { what: "uprobe program", name };
        let program = self.object.programs.get(name).ok_or_else(lacks)?;
        let code = self.object.functions.get(&program.function_key()).ok_or_else(lacks)?;
        Ok(Linked {
            name,
            program: program.clone(),
            code: code.clone(),
            leads_to: Arc::clone(&self.leads_to),
        })
    }
}

/// A program linked with its maps.
pub(super) struct Linked {
    name: &'static str,
    program: Program,
    code: Function,
    leads_to: Arc<LeadsTo>,
}

impl Linked {
    pub(super) const fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn load(&self) -> Result<OwnedFd, Refused> {
        let types = self.leads_to.types.as_ref().map(|types| types.as_fd());
        bpf::load_program(self.name, &self.program, &self.code, types)
    }

    fn load_or_say(&self) -> Result<OwnedFd, Error> {
        self.load().map_err(|refused| refused.of(self.name))
    }
}

/// A program that few processes need.
pub(super) struct Rare {
    linked: Linked,
    loaded: OnceCell<OwnedFd>,
}

impl Rare {
    pub(super) fn new(linked: Linked) -> Self {
        Self { linked, loaded: OnceCell::new() }
    }

    /// The program, if it is loaded.
    pub(super) fn loaded(&self) -> Option<&OwnedFd> {
        self.loaded.get()
    }

    /// The program, loaded on first use.
    pub(super) fn get(&self) -> Result<BorrowedFd<'_>, Error> {
        if let Some(loaded) = self.loaded.get() {
            return Ok(loaded.as_fd());
        }
        let loaded = self.linked.load_or_say()?;
        Ok(self.loaded.get_or_init(|| loaded).as_fd())
    }
}

/// Loads programs in parallel, because the verifier is slow and checks each one separately. If several are rejected, returns the
/// error of the first.
pub(super) fn load_together(programs: &[Linked]) -> Result<BTreeMap<&'static str, OwnedFd>, Error> {
    let next = AtomicUsize::new(0);
    let load = || {
        let mut loaded = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(linked) = programs.get(index) else { break };
            let program = linked.load_or_say();
            if program.is_err() {
                // The rest is not needed. Earlier ones are loaded or in progress.
                next.store(programs.len(), Ordering::Relaxed);
            }
            loaded.push((index, program.map(|program| (linked.name, program))));
        }
        loaded
    };
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        // If no thread can be created, this thread loads all programs.
        let others: Vec<_> = (1..processors.min(LOADED_AT_ONCE))
            .map_while(|_| thread::Builder::new().spawn_scoped(scope, load).ok())
            .collect();
        let mut loaded: BTreeMap<_, _> = load().into_iter().collect();
        for other in others {
            loaded.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        loaded.into_values().collect()
    })
}

impl Refused {
    /// Error for the program of this name.
    pub(super) fn of(self, name: &'static str) -> Error {
        Error::refused(name, &self.log, self.error)
    }
}

/// Relocates the code of an object: references to the maps that aya has created, and calls of its functions. Returns the
/// descriptors that the code refers to.
fn link(object: &mut Object, ebpf: &Ebpf) -> Result<Vec<OwnedFd>, Error> {
    let text: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
    let maps = object.maps.clone();
    let made = |name: &str| data(ebpf.map(name)?).map(|map| map.fd().as_fd().try_clone_to_owned());
    let made = maps.iter().filter_map(|(name, map)| Some(made(name)?.map(|made| (name.as_str(), made, map))));
    let made: Vec<_> = made.collect::<Result<_, _>>().map_err(Error::Descriptors)?;
    let maps = made.iter().map(|(name, made, map)| (*name, made.as_raw_fd(), *map));
    object.relocate_maps(maps, &text).map_err(|source| Error::Load(Box::new(source.into())))?;
    object.relocate_calls(&text).map_err(|source| Error::Load(Box::new(source.into())))?;
    Ok(made.into_iter().map(|(_, made, _)| made).collect())
}

/// Data of a map, for the kinds of maps in the object.
fn data(map: &Map) -> Option<&MapData> {
    match map {
        Map::Array(data)
        | Map::ArrayOfMaps(data)
        | Map::HashMap(data)
        | Map::PerCpuArray(data)
        | Map::Queue(data)
        | Map::RingBuf(data)
        // Task storage.
        | Map::Unsupported(data) => Some(data),
        _ => None,
    }
}
