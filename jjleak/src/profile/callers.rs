//! Stacks without the allocation function, which is the innermost frame where calls of allocators were recorded.

use jjleak_common::stack::StackStatus;

use super::{SharedFrame, SourceKind, StackProfile};

/// Allocation functions, without the prefix of a jemalloc. The functions that they call are inside of the allocator.
const ALLOCATION_FUNCTIONS: [&str; 25] = [
    "malloc",
    "calloc",
    "realloc",
    "memalign",
    "posix_memalign",
    "aligned_alloc",
    "valloc",
    "pvalloc",
    "mallocx",
    "rallocx",
    "xallocx",
    "smallocx",
    "operator new",
    "operator new[]",
    "tc_malloc",
    "tc_calloc",
    "tc_realloc",
    "tc_memalign",
    "tc_new",
    "tc_newarray",
    "tc_posix_memalign",
    "malloc_default",
    "rust_alloc",
    "rust_alloc_zeroed",
    "rust_realloc",
];
/// Prefixes of the functions of a jemalloc that a program has linked in, the longer ones first.
const PREFIXES: [&str; 5] = ["_rjem_je_", "_rjem_", "je_", "__libc_", "__"];

/// Returns true for an allocation function, by its name.
#[must_use]
pub fn is_allocation_function(symbol: &str) -> bool {
    let name = symbol.split('(').next().unwrap_or(symbol);
    // Rust's have a module of the compiler's.
    let name = if name.starts_with("__rustc") { name.rsplit("::").next().unwrap_or(name) } else { name };
    let plain = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
    ALLOCATION_FUNCTIONS.contains(&plain)
}

/// Returns true for `libjemalloc.so.2`, `libtcmalloc.so.4` and the like.
#[must_use]
pub fn is_of_allocator(module: &str) -> bool {
    let name = module.rsplit('/').next().unwrap_or(module);
    name.starts_with("lib") && name.contains("malloc")
}

impl StackProfile {
    /// The frames without the allocation function: memory is its caller's own, as in `jeprof`. Stacks of other tools may begin with
    /// the caller.
    pub fn callers(&self, source: SourceKind) -> impl Iterator<Item = &SharedFrame> {
        self.frames.iter().skip(usize::from(self.begins_with_allocation(source)))
    }

    fn begins_with_allocation(&self, source: SourceKind) -> bool {
        let Some(first) = self.frames.first() else { return false };
        let is_allocation = match self.status {
            StackStatus::Foreign => is_allocation_function(&first.symbol) || is_of_allocator(&first.module),
            _ => source == SourceKind::Malloc,
        };
        is_allocation && self.frames.len() > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Frame;
    use crate::render::sample;

    #[test]
    fn the_allocation_function_is_left_out_where_a_stack_begins_with_one() {
        let innermost_of = |status, source, functions: &[&str]| {
            let frame = |symbol: &&str| Frame { symbol: (*symbol).to_owned(), ..Frame::default() };
            let frames = sample::shared(functions.iter().map(frame));
            let stack = StackProfile { status, frames, ..sample::empty_stack() };
            stack.callers(source).next().unwrap().symbol.clone()
        };
        let counted = |source| innermost_of(StackStatus::Complete, source, &["pool_get", "main"]);
        assert_eq!([SourceKind::Malloc, SourceKind::JavaHeap].map(counted), ["main", "pool_get"]);
        let foreign = |functions: &[&str]| innermost_of(StackStatus::Foreign, SourceKind::Malloc, functions);
        assert_eq!(foreign(&["_rjem_malloc", "main"]), "main");
        assert_eq!(foreign(&["main.leak", "main.main"]), "main.leak", "Go's profiles begin with the caller");
        assert_eq!(foreign(&["malloc"]), "malloc");
    }
}
