//! The functions with which HotSpot announces objects in its heap, once per thread-local buffer (`src/hotspot/share/gc/shared/allocTracer.hpp`
//! in the JDK). It calls them without any option, for JFR to find.

use std::path::{Path, PathBuf};

use jjleak_common::cookie::{ARG0, ARG2, ARG3, ARG4, ResultIn, Signature};

use super::{NamedAllocator, NamedFunction, Place};
use crate::allocators::site::Role;
use crate::allocators::{Error, Hints, ModuleAllocators, Unfollowed, find_sites};
use crate::file_content::Content;

/// Name of the allocator in messages.
pub const JAVA_HEAP: &str = "Java heap";
/// File name of HotSpot's library.
const LIBRARY: &str = "libjvm.so";
/// Types of the second argument: `HeapWord*`, an incomplete class since JDK 16.
const OBJECT: [&str; 2] = ["PP12HeapWordImpl", "P8HeapWord"];
/// Types of the last argument: `JavaThread*` since JDK 17, `Thread*` before.
const THREAD: [&str; 2] = ["P10JavaThread", "P6Thread"];

/// `send_allocation_in_new_tlab(Klass*, HeapWord*, size_t tlab_size, size_t size, Thread*)`.
const IN_BUFFER: Signature = Signature {
    pointer: Some(ARG0),
    extra: Some(ARG2),
    size: Some(ARG3),
    count: Some(ARG4),
    result: ResultIn::Return,
    zero_frees: false,
};

/// `send_allocation_outside_tlab(Klass*, HeapWord*, size_t size, Thread*)`.
const OUTSIDE: Signature = Signature { extra: None, size: Some(ARG2), count: Some(ARG3), ..IN_BUFFER };

/// Oldest JDK whose functions say which thread allocates.
pub const OLDEST_JDK_WITH_HEAP: u64 = 11;

/// Finds the functions of a Java heap in a file with this path and content, if it is a JVM's library, with the help of its debug file.
pub fn java_heap_sites(
    path: &Path,
    elf: Content<'_>,
    debug_file: Option<Content<'_>>,
) -> Result<ModuleAllocators, Error> {
    let heap = NamedAllocator::java_heap();
    if !heap.may_be_in(path) {
        return Ok(ModuleAllocators::default());
    }
    let found = find_sites(elf, Hints { named: &[&heap], debug_file, ..Hints::default() })?;
    let mut profiled = found.profiled;
    profiled.retain(|allocator| allocator.family == heap.name);
    let unfollowed = if profiled.is_empty() { vec![Unfollowed::Hidden(JAVA_HEAP)] } else { Vec::new() };
    Ok(ModuleAllocators { profiled, unfollowed, stripped: found.stripped })
}

impl NamedAllocator {
    /// HotSpot's Java heap, in JDK 11 and later.
    #[must_use]
    pub fn java_heap() -> Self {
        let function = |name: &str, arguments: &str, signature| NamedFunction {
            place: Place::Names(
                OBJECT
                    .into_iter()
                    .flat_map(|object| {
                        THREAD.map(|thread| format!("{name}EP5Klass{object}{arguments}{thread}"))
                    })
                    .collect(),
            ),
            role: Role::JavaObject,
            signature,
        };
        Self {
            name: JAVA_HEAP.to_owned(),
            file: Some(PathBuf::from(LIBRARY)),
            explicit: false,
            functions: vec![
                function("_ZN11AllocTracer27send_allocation_in_new_tlab", "mm", IN_BUFFER),
                function("_ZN11AllocTracer28send_allocation_outside_tlab", "m", OUTSIDE),
            ],
        }
    }
}
