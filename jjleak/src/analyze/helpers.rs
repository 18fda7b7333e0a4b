//! Functions that allocate for their callers, so that it is the caller that is relevant.

use super::begins_with;
use super::rust_crates::{defining_path, standard_source};
use crate::profile::{Frame, FrameKind};

/// Last name components of functions that return what they have allocated.
const HELPER_NAMES: [&str; 18] = [
    "zalloc",
    "palloc",
    "memalign",
    "aligned_alloc",
    "strdup",
    "strndup",
    "memdup",
    "asprintf",
    "allocatememory",
    // CPython: memory of any object.
    "genericalloc",
    "gc_new",
    "gc_newvar",
    "pyobject_new",
    "pyobject_newvar",
    // Redis: memory of any string.
    "sdsnewlen",
    "sdsnew",
    "sdsdup",
    "sdsmakeroomfor",
];

/// Words in the last name component of helpers, unless the name has a purpose, as in `preallocate_pages`.
const HELPER_WORDS: [&str; 3] = ["malloc", "calloc", "realloc"];
const PURPOSE: &str = "allocat";

/// Name prefixes of functions that return what they have allocated, or grow a container.
const HELPER_PREFIXES: [&str; 12] = [
    "operator new",
    "void* operator new",
    "__gnu_cxx::",
    "alloc::",
    "core::",
    "hashbrown::",
    "__rust_",
    "__rdl_",
    "__rg_",
    "os::",
    "AllocateHeap",
    "Unsafe_",
];

/// The same for those in the namespace `std` of C++, and the crate of this name.
const STD_HELPER_PREFIXES: [&str; 29] = [
    "allocat",
    "__allocat",
    "__new_allocator",
    "__libcpp_",
    "__detail::_Hashtable_alloc",
    "__detail::_Map_base",
    "_Vector_base",
    "__split_buffer",
    "vector",
    "deque",
    "_Deque_base",
    "list",
    "_List_base",
    "_Rb_tree",
    "__tree",
    "map",
    "set",
    "_Hashtable",
    "__hash_table",
    "unordered_",
    "basic_string",
    "string",
    "make_unique",
    "_MakeUniq",
    "__unique_if",
    "make_shared",
    "__shared_",
    "shared_ptr",
    "collections::",
];

/// Namespaces of Abseil's containers. Their names begin with `absl::`, and have a namespace of the version in between.
const ABSEIL_CONTAINERS: [&str; 2] = ["::container_internal::", "::inlined_vector_internal::"];

/// Namespaces in `std` that C++ names have in symbols only: of libc++, and of strings and lists in libstdc++.
const INLINE_NAMESPACES: [&str; 2] = ["__1::", "__cxx11::"];

/// Parts of the paths of files whose functions do so. Debug information has inlined functions, and generic ones, without their module.
const HELPER_SOURCES: [&str; 2] = ["/hashbrown-", "/include/c++/"];

/// The same, in the sources of Rust's standard library.
const RUST_HELPER_SOURCES: [&str; 5] =
    ["alloc/src/", "core/src/", "std/src/alloc.rs", "std/src/collections/", "std/src/sys/"];

/// Name prefixes of functions of other heap samplers that are linked into programs, and call the allocator.
const SAMPLER_PREFIXES: [&str; 3] = ["dd_probe_", "dd_allocation_", "gotter_"];

/// Beginnings of functions of Rust's standard library that allocate for their callers, as `std::fs::read`. The program's own functions are not
/// inlined into them, as they can be into `std::sys::backtrace::__rust_begin_short_backtrace`.
const RUST_LIBRARY: [&str; 7] =
    ["std::env::", "std::ffi::", "std::fs::", "std::io::", "std::net::", "std::path::", "std::process::"];

/// Name prefixes of the C library's files. It allocates for its caller, too, as in `fopen` and `getaddrinfo`.
const C_LIBRARY: [&str; 6] = ["libc.so", "libc-2.", "libc.musl", "ld-linux", "ld-musl", "libpthread"];

/// The same for Java, as parts of class and method names.
const JAVA_HELPERS: [&str; 6] = [
    "misc.Unsafe.",
    "java.nio.DirectByteBuffer.",
    "java.nio.ByteBuffer.allocateDirect",
    "java.util.zip.Inflater.init",
    "java.util.zip.Deflater.init",
    "java.nio.Bits.",
];

/// Returns whether a function returns what it has allocated, so that its caller is the relevant one.
pub(super) fn is_helper(frame: &Frame) -> bool {
    let name = frame.symbol.as_str();
    match frame.kind {
        FrameKind::JvmGenerated | FrameKind::Memory | FrameKind::Class | FrameKind::Thread => true,
        FrameKind::Java | FrameKind::JavaInlined => {
            let name = name.replace('/', ".");
            JAVA_HELPERS.iter().any(|helper| name.contains(helper))
        }
        _ if frame.is_of_sampler() || has_helper_prefix(name) || has_helper_source(&frame.file) => true,
        _ => {
            let name = name.split(['(', '<', '@', '.']).next().unwrap_or_default();
            let last = name.rsplit("::").next().unwrap_or_default();
            let last = last.trim_end_matches(|c: char| c.is_ascii_digit() || c == '_').to_ascii_lowercase();
            HELPER_NAMES.iter().any(|ending| last.ends_with(ending))
                || (HELPER_WORDS.iter().any(|word| last.contains(word)) && !last.contains(PURPOSE))
        }
    }
}

fn has_helper_prefix(symbol: &str) -> bool {
    [symbol, without_type(symbol), defining_path(symbol)].into_iter().any(|name| {
        begins_with(name, &HELPER_PREFIXES)
            || begins_with(name, &SAMPLER_PREFIXES)
            || is_abseil_container(name)
            || name_in_std(name).is_some_and(|name| begins_with(name, &STD_HELPER_PREFIXES))
    })
}

fn is_abseil_container(name: &str) -> bool {
    let path = name.split(['<', '(']).next().unwrap_or_default();
    path.starts_with("absl::") && ABSEIL_CONTAINERS.iter().any(|container| path.contains(container))
}

/// The name in `std`, without inline namespaces.
fn name_in_std(name: &str) -> Option<&str> {
    let name = name.strip_prefix("std::")?;
    Some(INLINE_NAMESPACES.iter().find_map(|namespace| name.strip_prefix(namespace)).unwrap_or(name))
}

fn has_helper_source(file: &str) -> bool {
    let of_rust = standard_source(file);
    HELPER_SOURCES.iter().any(|part| file.contains(part))
        || of_rust.is_some_and(|path| begins_with(path, &RUST_HELPER_SOURCES))
}

/// A C++ function without its return type, which precedes the names of template instances.
pub(super) fn without_type(symbol: &str) -> &str {
    let (mut depth, mut start) = (0_u32, 0);
    for (index, byte) in symbol.bytes().enumerate() {
        match byte {
            b'<' => depth += 1,
            b'>' => depth = depth.saturating_sub(1),
            b' ' if depth == 0 => start = index + 1,
            b'(' if depth == 0 => break,
            _ => {}
        }
    }
    &symbol[start..]
}

/// Returns true for functions of the C library, and for those of Rust's standard library that allocate for their callers.
pub(super) fn is_of_standard_library(frame: &Frame) -> bool {
    let file = frame.module.rsplit('/').next().unwrap_or_default();
    let path = defining_path(&frame.symbol);
    begins_with(file, &C_LIBRARY)
        || begins_with(path, &RUST_LIBRARY)
        || standard_source(&frame.file).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(symbol: &str) -> Frame {
        Frame { symbol: symbol.to_owned(), kind: FrameKind::Native, ..Frame::default() }
    }

    #[test]
    fn functions_with_purposes_of_their_own_are_no_helpers() {
        for symbol in [
            "session_open",
            "cache_alloc_page",
            "parse",
            "Malloc::report",
            "strdup_all",
            "preallocate_pages",
            "std::sys::backtrace::__rust_begin_short_backtrace",
            "<alloc::vec::Vec<app::Session> as app::Cache>::keep",
            "<app::Session as core::clone::Clone>::clone",
            "absl::lts_20260107::Status::Status(absl::lts_20260107::container_internal::btree<int>*)",
        ] {
            assert!(!is_helper(&function(symbol)), "{symbol}");
        }
    }

    #[test]
    fn functions_of_rust_without_debug_information_are_known_by_their_crates() {
        for symbol in [
            "<alloc::raw_vec::RawVecInner<_>>::reserve::do_reserve_and_handle::<alloc::alloc::Global>",
            "<T as alloc::slice::<impl [T]>::to_vec_in::ConvertVec>::to_vec",
            "<app::Session as <[_]>::to_vec_in::ConvertVec>::to_vec::<alloc::alloc::Global>",
            "<[app::Session]>::to_vec",
            "<u64 as alloc::string::SpecToString>::spec_to_string",
            "<hashbrown::raw::RawTable<(u64, app::Session)>>::reserve_rehash::<app::hasher>",
            "<std::collections::hash::map::HashMap<u64, app::Session>>::insert",
        ] {
            assert!(is_helper(&function(symbol)), "{symbol}");
        }
    }

    #[test]
    fn containers_of_cpp_are_known_despite_inline_namespaces() {
        for symbol in [
            "absl::lts_20260107::container_internal::HashtableSize::NextSeed()",
            "std::pair<int, bool> absl::lts_20260107::container_internal::btree<int>::insert_unique<int>(int&&)",
            "void* std::__1::__libcpp_operator_new<unsigned long>(unsigned long)",
            "std::__1::basic_string<char, std::__1::allocator<char> >::__init(unsigned long, char)",
            "std::__1::pair<int, bool> std::__1::__hash_table<int>::__emplace_unique_key_args<int>(int&&)",
            "std::__1::__unique_if<Session>::__unique_single std::__1::make_unique<Session, int&>(int&)",
        ] {
            assert!(is_helper(&function(symbol)), "{symbol}");
        }
    }

    #[test]
    fn rusts_library_allocates_for_its_callers_with_and_without_debug_information() {
        let with_debug_information = Frame {
            file: "/rustc/59807616e1fa2540724bfbac14d7976d7e4a3860/library/std/src/fs.rs".to_owned(),
            ..function("inner")
        };
        assert!(is_of_standard_library(&with_debug_information));
        for symbol in ["std::fs::read::inner", "<std::io::buffered::BufReader<std::fs::File>>::with_capacity"]
        {
            assert!(is_of_standard_library(&function(symbol)), "{symbol}");
        }
        let of_program =
            Frame { file: "/home/dev/shelf/library/std/src/fs.rs".to_owned(), ..function("inner") };
        assert!(!is_of_standard_library(&of_program));
    }
}
