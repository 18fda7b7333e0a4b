//! A BPF array mapped into jjleak's address space. The kernel side writes to it at any time, so every access is volatile and
//! nothing is borrowed from it.

use std::marker::PhantomData;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

use aya::maps::{Map, MapData};
use memmap2::{MmapOptions, MmapRaw};

use super::Error;

/// A mapped array of `T`.
pub(crate) struct Mapped<T> {
    memory: MmapRaw,
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
        let (begin, bytes) = (first * size_of::<T>(), len * size_of::<T>());
        let options = MmapOptions::new().offset(begin as u64).len(bytes).to_owned();
        let memory = options.map_raw(map.fd().as_fd().as_raw_fd()).map_err(Error::Map)?;
        Ok(Self { memory, len, element: PhantomData })
    }

    /// Number of elements.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Pointer to an element, valid for the lifetime of `self`; writing requires [`Self::writable`]. `None` if out of bounds.
    pub(crate) fn get(&self, index: usize) -> Option<*mut T> {
        // SAFETY: the index is within the mapping, which has `len` elements.
        (index < self.len).then(|| unsafe { self.memory.as_mut_ptr().cast::<T>().add(index) })
    }
}
