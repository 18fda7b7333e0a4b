//! Heap profiles that an allocator writes itself: whether it can, and whether it has been told to.

use std::fmt::{self, Display, Formatter};
use std::fs::File;
use std::io::Read;

use memchr::memmem::Finder;

use crate::file_content::Content;
use crate::processes::Pid;

/// Maximum size of an environment.
const MAX_ENVIRONMENT: u64 = 4 << 20;

/// Formats that only an allocator with a profiler writes, in two parts: jjleak's own executable is not to have them.
const JEMALLOC: [&str; 2] = ["heap_v", "2/%"];
const TCMALLOC: [&str; 2] = ["HeapProfiler", "Start"];

/// State of an allocator's own profiler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeapProfiles {
    /// It was told to, by this environment variable.
    Active(Profiler, &'static str),
    /// It could, had it been told to.
    Possible(Profiler),
    /// The allocator was built without it.
    NotBuilt(Profiler),
}

/// An allocator with a profiler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profiler {
    /// jemalloc's `prof`.
    Jemalloc,
    /// The heap profiler of gperftools.
    Tcmalloc,
}

impl HeapProfiles {
    /// State of the profiler in a file with an allocator of this family; `None` if the family has no profiler.
    pub(super) fn of(family: &str, elf: Content<'_>, environment: &Environment) -> Option<Self> {
        let profiler = match family {
            "jemalloc" => Profiler::Jemalloc,
            "tcmalloc" => Profiler::Tcmalloc,
            _ => return None,
        };
        let (format, settings): (_, &[_]) = match profiler {
            Profiler::Jemalloc => {
                (JEMALLOC, &[("MALLOC_CONF", "prof:true"), ("_RJEM_MALLOC_CONF", "prof:true")])
            }
            Profiler::Tcmalloc => (TCMALLOC, &[("HEAPPROFILE", "")]),
        };
        if !has(elf, &format.concat()) {
            return Some(Self::NotBuilt(profiler));
        }
        let set = settings.iter().find(|(name, value)| environment.has(name, value));
        Some(set.map_or(Self::Possible(profiler), |(name, _)| Self::Active(profiler, name)))
    }
}

impl Display for HeapProfiles {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Active(_, variable) => {
                write!(formatter, "{variable} asks for them; to read them: jjleak report FILE")
            }
            Self::Possible(Profiler::Jemalloc) => formatter.write_str(
                "MALLOC_CONF does not ask for them (to do: start it with MALLOC_CONF=prof:true,prof_final:true; it then takes some 5 % more CPU time)",
            ),
            Self::Possible(Profiler::Tcmalloc) => formatter.write_str(
                "HEAPPROFILE does not ask for them (to do: start it with HEAPPROFILE=/tmp/heap; it then records each allocation)",
            ),
            Self::NotBuilt(Profiler::Jemalloc) => formatter.write_str(
                "it was built without them (to do: configure it with --enable-prof; in Rust: the feature `profiling` of \
                 tikv-jemallocator)",
            ),
            Self::NotBuilt(Profiler::Tcmalloc) => {
                formatter.write_str("it was built without them (to do: libtcmalloc in place of libtcmalloc_minimal)")
            }
        }
    }
}

fn has(elf: Content<'_>, text: &str) -> bool {
    let (finder, mut found) = (Finder::new(text), false);
    elf.visit(0..elf.length(), text.len(), |_, bytes| found |= finder.find(bytes).is_some()) && found
}

/// The variables with which a process was started.
#[derive(Debug, Default)]
pub(super) struct Environment(Vec<u8>);

impl Environment {
    /// Empty if it cannot be read.
    pub(super) fn of(pid: Pid) -> Self {
        let mut bytes = Vec::new();
        let read = File::open(pid.proc_file("environ"))
            .and_then(|file| file.take(MAX_ENVIRONMENT).read_to_end(&mut bytes));
        if read.is_ok() { Self(bytes) } else { Self::default() }
    }

    fn has(&self, name: &str, value: &str) -> bool {
        let variables = self.0.split(|byte| *byte == 0);
        let mut values =
            variables.filter_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
        values.any(|set| Finder::new(value).find(set).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(family: &str, file: &[u8], environment: &[u8]) -> Option<HeapProfiles> {
        HeapProfiles::of(family, Content::from(file), &Environment(environment.to_vec()))
    }

    #[test]
    fn a_profiler_is_known_by_what_it_writes_and_its_state_by_the_environment() {
        use Profiler::{Jemalloc, Tcmalloc};
        let jemalloc = JEMALLOC.concat();
        let file = ["\u{7f}ELF\0", &jemalloc, "lu\0"].concat();
        let of_jemalloc = |environment| of("jemalloc", file.as_bytes(), environment);
        assert_eq!(of_jemalloc(b"A=1\0"), Some(HeapProfiles::Possible(Jemalloc)));
        let active = |variable| Some(HeapProfiles::Active(Jemalloc, variable));
        assert_eq!(of_jemalloc(b"A=1\0MALLOC_CONF=narenas:1,prof:true\0"), active("MALLOC_CONF"));
        assert_eq!(of_jemalloc(b"_RJEM_MALLOC_CONF=prof:true"), active("_RJEM_MALLOC_CONF"));
        assert_eq!(
            of_jemalloc(b"MALLOC_CONF=prof:false\0MALLOC_CONFIG=prof:true\0"),
            Some(HeapProfiles::Possible(Jemalloc))
        );
        assert_eq!(of("jemalloc", b"\0heap\0", b""), Some(HeapProfiles::NotBuilt(Jemalloc)));
        assert_eq!(
            of("tcmalloc", b"HeapProfilerStart\0", b"HEAPPROFILE=/tmp/x\0"),
            Some(HeapProfiles::Active(Tcmalloc, "HEAPPROFILE"))
        );
        assert_eq!(of("glibc", b"HeapProfilerStart\0", b""), None);
    }
}
