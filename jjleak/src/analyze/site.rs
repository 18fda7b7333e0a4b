//! Identity of call sites.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};

use smallvec::SmallVec;

use super::helpers::{is_helper, is_of_standard_library};
use crate::profile::{Frame, FrameKind, SharedFrame};

/// Frames that identify a call site, from the caller on. Deeper frames vary with a server's requests: a leak
/// would be spread over too many sites, and none would show it.
const IDENTIFYING_FRAMES: usize = 12;

/// The entry point of programs, before any code of their own.
const ENTRY_POINT: &str = "_start";

/// Index of the call site's caller: the first frame after the allocation function that is neither a helper
/// nor in a standard library. If only such a library is on the stack, its first frame that is no helper; failing
/// that, the allocation function.
pub(super) fn caller(frames: &[SharedFrame]) -> usize {
    let callers = || frames.iter().enumerate().skip(1).filter(|(_, frame)| !is_helper(frame));
    let of_program =
        callers().find(|(_, frame)| !is_of_standard_library(frame) && frame.symbol != ENTRY_POINT);
    of_program.or_else(|| callers().next()).map_or(0, |(index, _)| index)
}

/// Identity of the call site of a stack.
#[must_use]
pub fn call_site(frames: &[SharedFrame]) -> u64 {
    identity(frames, caller(frames))
}

/// The call site's identity: the caller, its line, and the functions that lead to it. Recursion counts once;
/// parts of names that vary between runs do not count.
pub(super) fn identity(frames: &[SharedFrame], caller: usize) -> u64 {
    let mut hasher = DefaultHasher::new();
    let mut seen: Vec<(Cow<'_, str>, &str)> = Vec::with_capacity(IDENTIFYING_FRAMES);
    // Recursion repeats frames, which are shared.
    let mut repeated: SmallVec<[*const Frame; IDENTIFYING_FRAMES]> = SmallVec::new();
    for (index, frame) in frames.iter().enumerate().skip(caller) {
        // A call site is the same on all threads.
        if frame.kind == FrameKind::Thread || repeated.contains(&SharedFrame::as_ptr(frame)) {
            continue;
        }
        repeated.push(SharedFrame::as_ptr(frame));
        if index == caller {
            frame.file.hash(&mut hasher);
            frame.line.hash(&mut hasher);
            // Without lines, calls within a function differ by address; JIT-compiled code moves.
            if frame.line == 0 && !is_java(frame.kind) {
                frame.address.hash(&mut hasher);
            }
        }
        let function = if frame.symbol.is_empty() {
            (Cow::Owned(frame.address.to_string()), frame.module.as_str())
        } else {
            (lasting(&frame.symbol), frame.module.as_str())
        };
        if seen.contains(&function) {
            continue;
        }
        function.hash(&mut hasher);
        seen.push(function);
        if seen.len() == IDENTIFYING_FRAMES {
            break;
        }
    }
    hasher.finish()
}

const fn is_java(kind: FrameKind) -> bool {
    matches!(kind, FrameKind::Java | FrameKind::JavaInlined)
}

/// The name without the JVM's suffixes: `Name/0x00007f...` of hidden classes, and numbers of lambdas and
/// proxies.
fn lasting(symbol: &str) -> Cow<'_, str> {
    let mut rest = symbol;
    let mut name = String::new();
    while let Some(start) = rest.find("0x").or_else(|| rest.find("$$Lambda")) {
        let (before, marked) = rest.split_at(start);
        name.push_str(before);
        let marked = marked.strip_prefix("$$Lambda").map_or(&marked[2..], |after| {
            name.push_str("$$Lambda");
            after.trim_start_matches(['$', '/', '.'])
        });
        rest = marked.trim_start_matches(|c: char| c.is_ascii_hexdigit());
    }
    if name.is_empty() { Cow::Borrowed(symbol) } else { Cow::Owned(name + rest) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(symbols: &[&str]) -> Vec<SharedFrame> {
        let frame = |symbol: &&str| Frame {
            symbol: (*symbol).to_owned(),
            kind: FrameKind::Native,
            ..Frame::default()
        };
        symbols.iter().map(frame).map(SharedFrame::new).collect()
    }

    fn site(symbols: &[&str]) -> u64 {
        let frames = frames(symbols);
        identity(&frames, caller(&frames))
    }

    fn named(symbols: &[&str]) -> String {
        let frames = frames(symbols);
        frames[caller(&frames)].symbol.clone()
    }

    #[test]
    fn helpers_do_not_hide_who_calls_them() {
        for helpers in [
            &["malloc"][..],
            &["malloc", "xmalloc"],
            &["malloc", "zmalloc_usable", "_sdsnewlen"],
            &["malloc", "sqlite3MemMalloc", "sqlite3DbMallocRawNN"],
            &["malloc", "PyMem_RawMalloc", "_PyObject_Malloc"],
            &[
                "malloc",
                "operator new(unsigned long)",
                "std::vector<int, std::allocator<int> >::push_back(int&&)",
            ],
            &["malloc", "void std::vector<std::pair<int, char const*> >::_M_realloc_insert<int>(int&&)"],
            &["malloc", "__strdup"],
            &["realloc", "alloc::raw_vec::finish_grow", "alloc::vec::Vec<T,A>::push"],
            &["malloc", "os::malloc(unsigned long, MEMFLAGS)", "Unsafe_AllocateMemory0"],
        ] {
            let stack = [helpers, &["culprit", "main"]].concat();
            assert_eq!(named(&stack), "culprit", "{stack:?}");
        }
    }

    #[test]
    fn without_a_caller_the_allocation_function_is_the_call_site() {
        assert_eq!(caller(&frames(&["malloc"])), 0);
        assert_eq!(caller(&[]), 0);
    }

    #[test]
    fn the_c_library_does_not_hide_who_calls_it() {
        let stack = |files: &[(&str, &str)]| -> Vec<SharedFrame> {
            let frame = |(symbol, file): &(&str, &str)| Frame {
                symbol: (*symbol).to_owned(),
                module: format!("/usr/lib/x86_64-linux-gnu/{file}"),
                kind: FrameKind::Native,
                ..Frame::default()
            };
            files.iter().map(frame).map(SharedFrame::new).collect()
        };
        let libc = "libc.so.6";
        let program = [("culprit", "app"), ("main", "app"), ("__libc_start_main", libc), ("_start", "app")];
        for functions in
            [&[("_IO_new_fopen", libc)][..], &[("call_init", "ld-linux-x86-64.so.2"), ("dlopen", libc)]]
        {
            let frames = stack(&[&[("malloc", libc)], functions, &program].concat());
            assert_eq!(frames[caller(&frames)].symbol, "culprit");
        }
        let called_back =
            stack(&[&[("malloc", libc), ("compare", "app"), ("qsort", libc)], &program[..]].concat());
        assert_eq!(called_back[caller(&called_back)].symbol, "compare");
        let before_main =
            stack(&[("malloc", libc), ("init", libc), ("__libc_start_main", libc), ("_start", "app")]);
        assert_eq!(before_main[caller(&before_main)].symbol, "init");
    }

    #[test]
    fn inlined_functions_of_standard_libraries_do_not_hide_who_calls_them() {
        let rust = "/rustc/59807616e1fa2540724bfbac14d7976d7e4a3860/library";
        let source = |(symbol, file): (&str, &str)| {
            let (symbol, file) = (symbol.to_owned(), file.to_owned());
            SharedFrame::new(Frame { symbol, file, kind: FrameKind::Native, ..Frame::default() })
        };
        let stack = |frames: &[(&str, &str)]| -> Vec<_> { frames.iter().copied().map(source).collect() };
        let named = |frames: &[SharedFrame]| frames[caller(frames)].symbol.clone();
        let of = |path: &str| format!("{rust}{path}");
        let (system, unix, vec) =
            (of("/std/src/alloc.rs"), of("/std/src/sys/alloc/unix.rs"), of("/alloc/src/vec/mod.rs"));
        let (read, runtime) = (of("/std/src/fs.rs"), of("/std/src/rt.rs"));
        let inner =
            [("malloc", ""), ("alloc", &*unix), ("alloc_impl_runtime", &*system), ("push<u8>", &*vec)];
        let keep = [("keep", "/home/dev/src/main.rs")];
        assert_eq!(named(&stack(&[&inner[..], &keep].concat())), "keep");
        let runs = [("read", &*read), ("{closure#0}", "src/main.rs"), ("lang_start", &*runtime)];
        assert_eq!(named(&stack(&[&inner[..], &runs].concat())), "{closure#0}");
        assert_eq!(named(&stack(&[&inner[..], &runs[2..]].concat())), "lang_start");
        let cpp =
            [("malloc", ""), ("push_back", "/usr/include/c++/12/bits/stl_vector.h"), ("keep", "keep.cc")];
        assert_eq!(named(&stack(&cpp)), "keep");
    }

    #[test]
    fn java_helpers_are_known_by_their_classes() {
        let mut stack = frames(&["malloc", "jdk.internal.misc.Unsafe.allocateMemory0", "app.Buffers.take"]);
        for method in &mut stack[1..] {
            SharedFrame::make_mut(method).kind = FrameKind::Java;
        }
        assert_eq!(caller(&stack), 2);
    }

    #[test]
    fn sites_are_the_same_whatever_helper_recursion_or_hidden_class() {
        assert_eq!(site(&["malloc", "leak", "main"]), site(&["calloc", "xcalloc", "leak", "main"]));
        assert_eq!(
            site(&["malloc", "leak", "walk", "walk", "main"]),
            site(&["malloc", "leak", "walk", "main"])
        );
        let deep = site(&["malloc", "leak", "a", "b", "a", "b", "a", "b", "main"]);
        assert_eq!(deep, site(&["malloc", "leak", "a", "b", "main"]));
        let hidden = |address| site(&["malloc", "leak", &format!("App$$Lambda/0x{address}.run"), "main"]);
        assert_eq!(hidden("00007f1234"), hidden("00007fabcd"));
        let lambda = |number| site(&["malloc", "leak", &format!("App$$Lambda${number}.run"), "main"]);
        assert_eq!(lambda(14), lambda(15));
    }

    #[test]
    fn sites_differ_by_who_calls_from_where() {
        assert_ne!(site(&["malloc", "leak", "main"]), site(&["malloc", "other", "main"]));
        assert_ne!(site(&["malloc", "leak", "one"]), site(&["malloc", "leak", "two"]));
        let mut line = frames(&["malloc", "leak", "main"]);
        SharedFrame::make_mut(&mut line[1]).line = 7;
        assert_ne!(identity(&line, 1), site(&["malloc", "leak", "main"]));
    }
}
