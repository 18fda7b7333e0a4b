//! A BPF array mapped into jjleak's address space. The kernel side writes to it at any time, so every access is volatile and
//! nothing is borrowed from it.

use std::marker::PhantomData;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use aya::maps::{Map, MapData};
use memmap2::{MmapOptions, MmapRaw};

use super::Error;

/// A mapped array of `T`.
pub(crate) struct Mapped<T> {
    map: OwnedFd,
    options: MmapOptions,
    /// `None` while it is [released](Self::release).
    memory: Option<MmapRaw>,
    len: usize,
    element: PhantomData<T>,
}

impl<T> Mapped<T> {
    /// Maps a whole array map for reading and writing. The map's value type must be `T`.
    pub(crate) fn writable(map: &Map) -> Result<Self, Error> {
        let Map::Array(data) = map else {
            return Err(Error::ObjectLacks { what: "mappable array", name: std::any::type_name::<T>() });
        };
        let info = data.info().map_err(Error::table)?;
        if info.value_size() as usize != size_of::<T>() {
            return Err(Error::ObjectLacks {
                what: "array of the right type",
                name: std::any::type_name::<T>(),
            });
        }
        Self::part(data, 0, info.max_entries() as usize)
    }

    /// Maps a part of an array map of `T`, or of one element that consists of `T`, for reading and writing.
    pub(crate) fn part(map: &MapData, first: usize, len: usize) -> Result<Self, Error> {
        Self::part_of(map.fd().as_fd(), first, len)
    }

    /// Maps another part of the same array. The offset of its first element must be a multiple of the page size.
    pub(crate) fn other_part(&self, first: usize, len: usize) -> Result<Self, Error> {
        Self::part_of(self.map.as_fd(), first, len)
    }

    fn part_of(map: BorrowedFd<'_>, first: usize, len: usize) -> Result<Self, Error> {
        let (begin, bytes) = (first * size_of::<T>(), len * size_of::<T>());
        let options = MmapOptions::new().offset(begin as u64).len(bytes).to_owned();
        let map = map.try_clone_to_owned().map_err(Error::Descriptors)?;
        let mut mapped = Self { map, options, memory: None, len, element: PhantomData };
        mapped.hold()?;
        Ok(mapped)
    }

    /// Maps the array again after [`Self::release`].
    pub(crate) fn hold(&mut self) -> Result<(), Error> {
        if self.memory.is_none() {
            self.memory = Some(self.options.map_raw(self.map.as_raw_fd()).map_err(Error::Map)?);
        }
        Ok(())
    }

    /// Unmaps the array, which counts as resident memory as long as it is mapped. It has no elements until [`Self::hold`].
    pub(crate) fn release(&mut self) {
        self.memory = None;
    }

    /// Number of elements.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Pointer to an element, valid until [`Self::release`]; writing requires [`Self::writable`]. `None` if out of bounds or released.
    pub(crate) fn get(&self, index: usize) -> Option<*mut T> {
        let memory = self.memory.as_ref().filter(|_| index < self.len)?;
        // SAFETY: the index is within the mapping, which has `len` elements.
        Some(unsafe { memory.as_mut_ptr().cast::<T>().add(index) })
    }
}
