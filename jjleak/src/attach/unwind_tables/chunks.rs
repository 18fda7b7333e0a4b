//! The maps with the rows: chunks, created as needed, and the directory.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::ptr::write_volatile;
use std::sync::atomic::{Ordering, fence};
use std::thread;

use aya::Ebpf;
use aya::maps::{Map, MapData};
use jjleak_common::names;
use jjleak_common::unwind::{CHUNK_SHIFT, CHUNK_WORDS, GROUPS};
use nix::errno::Errno;
use nix::libc;

use super::super::{Error, Mapped};

/// Commands of `bpf(2)`: `enum bpf_cmd` (include/uapi/linux/bpf.h).
const LOOKUP_ELEMENT: libc::c_int = 1;
const UPDATE_ELEMENT: libc::c_int = 2;
const DELETE_ELEMENT: libc::c_int = 3;

/// `BPF_MAP_TYPE_ARRAY` and `BPF_F_MMAPABLE` (include/uapi/linux/bpf.h).
const ARRAY: u32 = 2;
const MAPPABLE: u32 = 1 << 10;

/// The part of `union bpf_attr` used for one element.
#[repr(C)]
#[derive(Default)]
struct ElementAttr {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Chunks of rows and their directory. Chunks are mapped only while they are written.
pub(super) struct Chunks {
    /// Array of maps; kept open, because programs refer to it.
    outer: Map,
    maps: BTreeMap<u32, MapData>,
    /// Chunks that are not in the array of maps yet.
    unpublished: Vec<u32>,
    directory: Mapped<[u32; GROUPS]>,
}

impl Chunks {
    pub(super) fn new(ebpf: &mut Ebpf) -> Result<Self, Error> {
        let lacks = |name| Error::ObjectLacks { what: "map", name };
        let outer = ebpf.take_map(names::ROWS).ok_or(lacks(names::ROWS))?;
        let directory = Mapped::writable(ebpf.map(names::GROUPS).ok_or(lacks(names::GROUPS))?)?;
        Ok(Self { outer, maps: BTreeMap::new(), unpublished: Vec::new(), directory })
    }

    /// Creates chunks with these numbers. The kernel side does not see them before [`Self::publish`].
    pub(super) fn create(&mut self, numbers: &[u32]) -> Result<(), Error> {
        for number in numbers {
            let bytes = CHUNK_WORDS * size_of::<u64>();
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
            let definition = aya_obj::Map::new_from_params(ARRAY, 4, bytes, 1, MAPPABLE);
            let map = MapData::create(definition, names::ROWS, None).map_err(Error::table)?;
            self.maps.insert(*number, map);
            self.unpublished.push(*number);
        }
        Ok(())
    }

    /// Lets the kernel side see new chunks. The call that adds them then waits for running programs, some 10 ms; a thread does that.
    pub(super) fn publish(&mut self) -> Result<(), Error> {
        let Some((number, map)) = self.unpublished.last().and_then(|last| self.maps.get_key_value(last))
        else {
            return Ok(());
        };
        let id = map.info().map_err(Error::table)?.id();
        let update = self.update_of(&self.unpublished)?;
        let thread = thread::Builder::new().name("row chunks".to_owned());
        let Ok(adds) = thread.spawn(move || update.run()) else {
            self.update_of(&self.unpublished)?.run()?;
            self.unpublished.clear();
            return Ok(());
        };
        // The last one is added last. A thread that is over has added all, or has failed.
        while self.id_of(*number)? != Some(id) {
            if adds.is_finished() {
                adds.join().unwrap_or_else(|_| Err(Error::Chunks(Errno::EIO.into())))?;
                break;
            }
            thread::yield_now();
        }
        self.unpublished.clear();
        Ok(())
    }

    /// ID of a chunk's map in the array of maps.
    fn id_of(&self, number: u32) -> Result<Option<u32>, Error> {
        let mut id = 0u32;
        let (key, value) = (address(&raw const number), address(&raw mut id));
        let attr = ElementAttr { map_fd: self.outer()?, key, value, ..ElementAttr::default() };
        // SAFETY: key and value are alive until the call returns.
        match unsafe { bpf(LOOKUP_ELEMENT, &attr) } {
            Ok(()) => Ok(Some(id)),
            Err(Errno::ENOENT) => Ok(None),
            Err(error) => Err(Error::Chunks(error.into())),
        }
    }

    /// Writes words to a chunk.
    pub(super) fn write(&self, at: u32, words: &[u64]) -> Result<(), Error> {
        let lacks = Error::ObjectLacks { what: "chunk in map", name: names::ROWS };
        let chunk = self.maps.get(&(at >> CHUNK_SHIFT)).ok_or(lacks)?;
        let part = Mapped::<u64>::part(chunk, at as usize & (CHUNK_WORDS - 1), words.len())?;
        if let Some(to) = part.get(0) {
            // SAFETY: as many words are mapped for writing. No walk reads them: nothing leads to them yet.
            unsafe { std::ptr::copy_nonoverlapping(words.as_ptr(), to, words.len()) };
        }
        fence(Ordering::Release);
        Ok(())
    }

    /// Writes entries of the directory.
    pub(super) fn list(&self, first: u32, groups: &[u32]) {
        let Some(directory) = self.directory.get(0) else { return };
        for (index, group) in (first as usize..GROUPS).zip(groups) {
            // SAFETY: the directory is mapped for writing, and the index is in bounds.
            unsafe { write_volatile(directory.cast::<u32>().add(index), *group) };
        }
        fence(Ordering::Release);
    }

    /// Waits until all programs that run now have ended. The kernel waits for them when an element of a map of maps is
    /// replaced (`maybe_wait_bpf_programs` in kernel/bpf/syscall.c), even if the new one is the same. Returns false if there is none.
    pub(super) fn await_programs(&self) -> Result<bool, Error> {
        match self.maps.keys().next() {
            Some(any) => self.update_of(&[*any])?.run().map(|()| true),
            None => Ok(false),
        }
    }

    /// Takes back what [`Self::create`] has done, as far as it has.
    pub(super) fn discard(&mut self, numbers: &[u32]) {
        self.unpublished.retain(|unpublished| !numbers.contains(unpublished));
        self.maps.retain(|number, _| !numbers.contains(number));
    }

    /// Removes a chunk. The kernel frees its memory once all walks that run now are over.
    pub(super) fn remove(&mut self, number: u32) -> Result<(), Error> {
        if self.unpublished.contains(&number) {
            self.unpublished.retain(|unpublished| *unpublished != number);
            self.maps.remove(&number);
            return Ok(());
        }
        let attr =
            ElementAttr { map_fd: self.outer()?, key: address(&raw const number), ..ElementAttr::default() };
        // SAFETY: the key is alive until the call returns.
        unsafe { bpf(DELETE_ELEMENT, &attr) }.map_err(|error| Error::Chunks(error.into()))?;
        self.maps.remove(&number);
        Ok(())
    }

    /// An update of the array of maps with these chunks.
    fn update_of(&self, numbers: &[u32]) -> Result<Update, Error> {
        let chunks = numbers.iter().filter_map(|number| Some((*number, self.maps.get(number)?)));
        let chunks = chunks.map(|(number, map)| (number, map.fd().as_fd().as_raw_fd())).collect();
        Ok(Update { outer: self.outer()?, chunks })
    }

    fn outer(&self) -> Result<u32, Error> {
        let Map::ArrayOfMaps(outer) = &self.outer else {
            return Err(Error::ObjectLacks { what: "array of maps", name: names::ROWS });
        };
        Ok(outer.fd().as_fd().as_raw_fd().cast_unsigned())
    }
}

/// An update of the array of maps: numbers of elements, and maps.
struct Update {
    outer: u32,
    chunks: Vec<(u32, RawFd)>,
}

impl Update {
    /// Updates one element after the other: batches need Linux 5.19.
    fn run(self) -> Result<(), Error> {
        for (number, map) in self.chunks {
            let (key, value) = (address(&raw const number), address(&raw const map));
            let attr = ElementAttr { map_fd: self.outer, key, value, ..ElementAttr::default() };
            // SAFETY: key and value are alive until the call returns.
            unsafe { bpf(UPDATE_ELEMENT, &attr) }.map_err(|error| Error::Chunks(error.into()))?;
        }
        Ok(())
    }
}

/// Calls `bpf(2)`.
///
/// # Safety
/// The attributes are those of the command, and what they point to is alive.
unsafe fn bpf<T>(command: libc::c_int, attr: &T) -> Result<(), Errno> {
    // SAFETY: as promised by the caller.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attr), size_of::<T>()) };
    Errno::result(result).map(drop)
}

fn address<T>(pointer: *const T) -> u64 {
    pointer as u64
}
