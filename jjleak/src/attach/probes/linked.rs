//! The object's programs with the maps that they are for, on their way into the kernel.

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

/// Programs that are loaded at a time: each takes the verifier some tens of milliseconds.
const LOADED_AT_ONCE: usize = 8;

/// The object, whose code leads to the maps that aya has made.
pub(super) struct LinkedObject {
    object: Object,
    leads_to: Arc<LeadsTo>,
}

/// What a program's code refers to by numbers of descriptors, which mean the same for as long as these are open: aya's own are
/// closed where somebody takes a map from it and lets it go.
struct LeadsTo {
    types: Option<OwnedFd>,
    _maps: Vec<OwnedFd>,
}

impl LinkedObject {
    /// Links the object that `ebpf` has made the maps of.
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

    /// One of its programs.
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

/// A program with its code, which leads to the maps.
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

/// A program that few processes have a site for.
pub(super) struct Rare {
    linked: Linked,
    loaded: OnceCell<OwnedFd>,
}

impl Rare {
    pub(super) fn new(linked: Linked) -> Self {
        Self { linked, loaded: OnceCell::new() }
    }

    /// The program, if it was needed before.
    pub(super) fn loaded(&self) -> Option<&OwnedFd> {
        self.loaded.get()
    }

    /// The program, which is loaded now if it has not been.
    pub(super) fn get(&self) -> Result<BorrowedFd<'_>, Error> {
        if let Some(loaded) = self.loaded.get() {
            return Ok(loaded.as_fd());
        }
        let loaded = self.linked.load_or_say()?;
        Ok(self.loaded.get_or_init(|| loaded).as_fd())
    }
}

/// Loads programs, several at a time: the verifier takes long for them, and looks at each by itself. Of those that it refuses,
/// the first is told of.
pub(super) fn load_together(programs: &[Linked]) -> Result<BTreeMap<&'static str, OwnedFd>, Error> {
    let next = AtomicUsize::new(0);
    let load = || {
        let mut loaded = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(linked) = programs.get(index) else { break };
            let program = linked.load_or_say();
            if program.is_err() {
                // Nobody needs the rest. Those before it are loaded or on their way.
                next.store(programs.len(), Ordering::Relaxed);
            }
            loaded.push((index, program.map(|program| (linked.name, program))));
        }
        loaded
    };
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        // Where no thread can be made, this one loads them all.
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
    /// What is wrong with the program of this name.
    pub(super) fn of(self, name: &'static str) -> Error {
        Error::refused(name, &self.log, self.error)
    }
}

/// Lets the code of an object lead to the maps that aya has made, and to the functions that it calls. Returns the descriptors
/// by which it does.
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
