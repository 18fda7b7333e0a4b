//! Why a process grows: the causes, from two scans of its memory.
//!
//! In: the first and the last [`ProcessScan`]. Out: causes with their evidence, the one that explains most of the growth first.

mod growing;
mod java;
mod malloc;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::memory::{GO_HEAP, Kind, ProcessScan, Row};
use crate::processes::GroupMemory;
use crate::profile::{CAUSE_LINE, TO_DO_LINE};
use crate::render::{approximate as bytes, duration, printable};

pub use growing::{Growing, Grown, signed};

/// Maximum time for reading the arenas of malloc, where nothing waits for it.
pub const ARENA_TIME: Duration = Duration::from_secs(2);

/// Growth that is worth a diagnosis, in bytes and as a share of what was resident.
const MIN_GROWTH: u64 = 1 << 20;
const MIN_SHARE: f64 = 0.01;
/// Share of the growth from which on a kind of memory is a cause of it.
const CAUSE: f64 = 0.25;
/// Share of the growth of RSS that PSS must lack for the pages to be others', too: half of it is shared by two.
const MAPPED_AGAIN: f64 = 0.5;
/// Minimum number of new threads that count as growth.
const MIN_MORE_THREADS: u64 = 10;

/// Cause of growth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The program allocates native memory and keeps it.
    NativeLeak,
    /// malloc keeps free memory.
    Retention,
    /// malloc keeps free memory in as many arenas as it may have.
    ArenaCount,
    /// The Java heap.
    JavaHeap,
    /// The Java heap has grown beyond what is used in it.
    HeapPolicy,
    /// Direct buffers of Java code.
    DirectBuffers,
    /// Classes and their loaders.
    ClassLoaders,
    /// Threads.
    Threads,
    /// Shared memory.
    SharedMemory,
    /// Mapped files.
    MappedFiles,
    /// Anonymous memory outside glibc's malloc.
    OwnPool,
    /// Compiled code and other memory of the JVM.
    JvmInternal,
    /// Pages that are mapped elsewhere, too.
    MappedAgain,
    /// Page cache of the control group.
    PageCache,
    /// Memory of the kernel, charged to the control group.
    Kernel,
    /// It does not grow.
    None,
    /// What grows cannot be told.
    Unknown,
}

impl Cause {
    /// Returns true if the next step is to find the stacks that touch the memory.
    #[must_use]
    pub const fn leads_to_pages(self) -> bool {
        matches!(self, Self::SharedMemory | Self::OwnPool)
    }

    /// Returns true if the next step is to find who allocates in the Java heap.
    #[must_use]
    pub const fn leads_to_java_heap(self) -> bool {
        matches!(self, Self::JavaHeap)
    }

    /// Name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NativeLeak => "native_leak",
            Self::Retention => "retention",
            Self::ArenaCount => "arenas",
            Self::JavaHeap => "java_heap",
            Self::HeapPolicy => "heap_policy",
            Self::MappedAgain => "mapped_again",
            Self::DirectBuffers => "direct_buffers",
            Self::ClassLoaders => "class_loaders",
            Self::Threads => "threads",
            Self::SharedMemory => "shared_memory",
            Self::MappedFiles => "mapped_files",
            Self::OwnPool => "own_pool",
            Self::JvmInternal => "jvm_internal",
            Self::PageCache => "page_cache",
            Self::Kernel => "kernel",
            Self::None => "none",
            Self::Unknown => "unknown",
        }
    }

    /// Words for people.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::NativeLeak => "native memory that is allocated and not freed",
            Self::Retention => "free memory that malloc keeps",
            Self::ArenaCount => "free memory that malloc keeps in many arenas",
            Self::JavaHeap => "Java heap",
            Self::HeapPolicy => "Java heap that is committed and not used",
            Self::MappedAgain => "pages that are mapped elsewhere, too",
            Self::DirectBuffers => "direct buffers of Java code",
            Self::ClassLoaders => "classes and class loaders",
            Self::Threads => "threads",
            Self::SharedMemory => "shared memory",
            Self::MappedFiles => "mapped files",
            Self::OwnPool => "anonymous memory outside glibc's malloc",
            Self::JvmInternal => "memory of the JVM itself",
            Self::PageCache => "page cache of the control group",
            Self::Kernel => "kernel memory of the control group",
            Self::None => "no growth",
            Self::Unknown => "unknown",
        }
    }
}

/// Profile that shows who makes a process grow, beside one of allocations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextProfile {
    /// Objects in the Java heap.
    JavaHeap,
    /// Pages that become resident.
    Pages,
    /// Mappings of files.
    MappedFiles,
}

/// A cause, with its evidence.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// The cause.
    pub cause: Cause,
    /// Growth that it explains, in bytes.
    pub bytes: u64,
    /// Share of the growth that it explains, at most 1.
    pub confidence: f64,
    /// Observations.
    pub evidence: Vec<String>,
    /// Next step; empty if there is none.
    pub to_do: String,
}

impl Finding {
    /// A line for the cause, and one for the next step.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let share = if self.confidence > 0. {
            format!(" ({:.0} % of the growth)", self.confidence * 100.)
        } else {
            String::new()
        };
        let cause = format!("{CAUSE_LINE}{}{share}: {}", self.cause.words(), self.evidence.join("; "));
        let to_do = (!self.to_do.is_empty()).then(|| format!("{TO_DO_LINE}{}", self.to_do));
        [cause].into_iter().chain(to_do).collect()
    }
}

/// Changes by kind between two scans, the largest first.
#[must_use]
pub fn by_kind(first: &ProcessScan, last: &ProcessScan) -> Vec<(Kind, i64)> {
    Growth { first, last, pid: 0 }.by_kind()
}

/// Growth between two scans.
struct Growth<'a> {
    first: &'a ProcessScan,
    last: &'a ProcessScan,
    pid: u32,
}

/// Causes of the growth between two scans of a process, the largest first; at least one.
#[must_use]
pub fn diagnose(first: &ProcessScan, last: &ProcessScan, elapsed: Duration, pid: u32) -> Vec<Finding> {
    let growth = Growth { first, last, pid };
    let grown = last.scan.resident.saturating_sub(first.scan.resident);
    let enough = MIN_GROWTH.max(share_of(first.scan.resident, MIN_SHARE));
    let mut findings = if grown < enough { Vec::new() } else { growth.of_process(grown) };
    // Class loaders that are kept hold objects in the Java heap and memory of malloc, too.
    let is_root = |finding: &Finding| finding.cause == Cause::ClassLoaders && growth.keeps_loaders();
    findings.sort_by_key(|finding| Reverse((is_root(finding), finding.bytes)));
    // The group's causes come after the process's own: other processes of the group have a part in them.
    findings.extend(growth.of_control_group(grown, enough));
    if findings.is_empty() {
        findings.push(growth.nothing(grown, enough, elapsed));
    }
    findings
}

impl Growth<'_> {
    fn of_process(&self, grown: u64) -> Vec<Finding> {
        let found = [
            self.native(),
            self.direct_buffers(),
            self.retention(),
            self.java_heap(),
            self.classes(),
            self.threads(),
            self.kind(Cause::SharedMemory, &[Kind::Shared], &self.who_touches()),
            self.kind(Cause::MappedFiles, &[Kind::File], &format!("jjleak --mmap=files -p {}", self.pid)),
            self.kind(Cause::JvmInternal, &[Kind::Code, Kind::Gc, Kind::Cds], &self.profile()),
            self.own_pool(),
            self.mapped_again(grown),
        ];
        let causes = found.into_iter().flatten();
        let share = |finding: &Finding| ratio(finding.bytes, grown);
        causes
            .filter(|finding| share(finding) >= CAUSE)
            .map(|finding| Finding {
                confidence: share(&finding).min(1.),
                bytes: finding.bytes.min(grown),
                ..finding
            })
            .collect()
    }

    /// Returns true if both scans could read malloc, or neither.
    const fn knows_malloc(&self) -> bool {
        self.first.malloc.is_some() == self.last.malloc.is_some()
    }

    /// Returns true if both scans could read a JVM, or neither.
    const fn knows_jvm(&self) -> bool {
        self.first.jvm.is_some() == self.last.jvm.is_some()
    }

    /// Kind of a row as both scans count it: what only one of them could read is anonymous memory in the other.
    fn kind_of(&self, row: &Row) -> Kind {
        use Kind::{
            Anonymous, Brk, ClassSpace, Code, Gc, JavaHeap, MallocCache, MallocFree, MallocLive, Metaspace,
        };
        match row.kind {
            MallocLive | MallocFree | MallocCache | Brk if !self.knows_malloc() => Anonymous,
            JavaHeap | Metaspace | ClassSpace | Code | Gc if !self.knows_jvm() => Anonymous,
            kind => kind,
        }
    }

    fn by_kind(&self) -> Vec<(Kind, i64)> {
        let mut sums = BTreeMap::<Kind, i64>::new();
        for row in &self.last.scan.rows {
            *sums.entry(self.kind_of(row)).or_default() += row.resident.cast_signed();
        }
        for row in &self.first.scan.rows {
            *sums.entry(self.kind_of(row)).or_default() -= row.resident.cast_signed();
        }
        let mut sums: Vec<_> = sums.into_iter().filter(|(_, grown)| *grown != 0).collect();
        sums.sort_by_key(|(_, grown)| Reverse(grown.unsigned_abs()));
        sums
    }

    /// Growth of kinds of memory; 0 if they shrink.
    fn of(&self, kinds: &[Kind]) -> u64 {
        let changes = self.by_kind();
        let sum: i64 = changes.iter().filter(|(kind, _)| kinds.contains(kind)).map(|(_, grown)| grown).sum();
        u64::try_from(sum).unwrap_or_default()
    }

    /// Names the stacks that make memory resident.
    fn who_touches(&self) -> String {
        format!("jjleak growth -p {}", self.pid)
    }

    /// Pages that other processes map, too: RSS grows, and memory does not.
    fn mapped_again(&self, grown: u64) -> Option<Finding> {
        let (first, last) = (&self.first.scan, &self.last.scan);
        let own = last.proportional.saturating_sub(first.proportional);
        let evidence = vec![
            format!("PSS +{}", bytes(own)),
            format!("RSS {}, PSS {}", bytes(last.resident), bytes(last.proportional)),
        ];
        let to_do = "judge the process by PSS: other processes, or other mappings of the same memory, count these pages, too";
        finding(Cause::MappedAgain, grown.saturating_sub(own), evidence, to_do)
            .filter(|found| ratio(found.bytes, grown) >= MAPPED_AGAIN)
    }

    fn profile(&self) -> String {
        format!("jjleak -p {}", self.pid)
    }

    fn kind(&self, cause: Cause, kinds: &[Kind], to_do: &str) -> Option<Finding> {
        let bytes = self.of(kinds);
        let largest = self.largest_rows(kinds);
        finding(cause, bytes, largest, to_do)
    }

    /// The rows of these kinds that have grown most.
    fn largest_rows(&self, kinds: &[Kind]) -> Vec<String> {
        const MOST: usize = 3;
        let before = |name: &str, kind: Kind| {
            let rows = self.first.scan.rows.iter();
            rows.filter(|row| row.kind == kind && row.name == name).map(|row| row.resident).sum::<u64>()
        };
        let of_kinds = self.last.scan.rows.iter().filter(|row| kinds.contains(&row.kind));
        let mut rows: Vec<_> = of_kinds
            .map(|row| (row.resident.saturating_sub(before(&row.name, row.kind)), row))
            .filter(|(grown, _)| *grown > 0)
            .collect();
        rows.sort_by_key(|(grown, _)| Reverse(*grown));
        let words = |(grown, row): &(u64, &Row)| {
            let name = if row.name.is_empty() { row.kind.words() } else { &row.name };
            format!("{}: +{}", printable(name), bytes(*grown))
        };
        rows.iter().take(MOST).map(words).collect()
    }

    /// More threads, and what their stacks take.
    fn threads(&self) -> Option<Finding> {
        let (before, now) = (self.first.threads as u64, self.last.threads as u64);
        let grown = self.of(&[Kind::ThreadStacks]);
        let more = now.saturating_sub(before);
        let is_cause = more >= MIN_MORE_THREADS.max(before / 4);
        let evidence = vec![format!("threads: {before}, then {now}"), format!("stacks: +{}", bytes(grown))];
        finding(Cause::Threads, grown, evidence, &self.profile()).filter(|_| is_cause)
    }

    /// Anonymous memory grows that neither glibc's malloc nor a JVM claims.
    fn own_pool(&self) -> Option<Finding> {
        let kinds = [Kind::Anonymous, Kind::Brk];
        let mut evidence = self.largest_rows(&kinds);
        let is_known = self.knows_malloc() && self.knows_jvm() && self.last.unknown.is_empty();
        let is_go = self.last.scan.rows.iter().any(|row| row.name == GO_HEAP);
        let uses_malloc = self.last.arenas.is_some_and(|arenas| arenas > 0);
        if is_known && !uses_malloc && !is_go {
            evidence
                .push("the program does not use glibc's malloc: its own allocator may hold it".to_owned());
        }
        let cause = if is_known && (uses_malloc || is_go) { Cause::OwnPool } else { Cause::Unknown };
        let to_do = match cause {
            Cause::OwnPool if is_go => {
                "the program's own heap profile, if it serves one: jjleak report http://HOST:PORT/debug/pprof/heap".to_owned()
            }
            Cause::OwnPool => self.who_touches(),
            // Counts the calls of allocators, too.
            _ => format!("jjleak --mmap -p {}", self.pid),
        };
        finding(cause, self.of(&kinds), evidence, &to_do)
    }

    /// The control group grows more than the process.
    fn of_control_group(&self, grown: u64, enough: u64) -> Vec<Finding> {
        let (Some(first), Some(last)) = (self.first.control_group, self.last.control_group) else {
            return Vec::new();
        };
        let beyond = last.current.saturating_sub(first.current).saturating_sub(grown);
        if beyond < enough.max(share_of(grown, 1.)) {
            return Vec::new();
        }
        let cache = (last.file - last.shared.min(last.file))
            .saturating_sub(first.file - first.shared.min(first.file));
        let kernel =
            |group: &GroupMemory| group.slab + group.kernel_stacks + group.page_tables + group.sockets;
        let kernel_grown = kernel(&last).saturating_sub(kernel(&first));
        let evidence = |what: &str, by: u64| {
            vec![format!(
                "control group: +{}, of which {what} +{}",
                bytes(last.current - first.current),
                bytes(by)
            )]
        };
        let found = [
            finding(
                Cause::PageCache,
                cache.min(beyond),
                evidence("page cache", cache),
                "nothing: the kernel reclaims it when memory is needed",
            ),
            finding(
                Cause::Kernel,
                kernel_grown.min(beyond),
                evidence("kernel memory", kernel_grown),
                "slabtop; ss -m",
            ),
        ];
        let share = |finding: &Finding| ratio(finding.bytes, beyond);
        let causes = found.into_iter().flatten();
        let mut causes: Vec<_> = causes
            .filter(|finding| finding.bytes >= enough && share(finding) >= CAUSE)
            .map(|finding| Finding { confidence: share(&finding).min(1.), ..finding })
            .collect();
        causes.sort_by_key(|finding| Reverse(finding.bytes));
        causes
    }

    fn nothing(&self, grown: u64, enough: u64, elapsed: Duration) -> Finding {
        let shown = self.last.scan.resident.abs_diff(self.first.scan.resident);
        let sign = if self.last.scan.resident < self.first.scan.resident { '-' } else { '+' };
        let (cause, to_do) = if grown < enough {
            (Cause::None, "watch it for longer: jjleak memory takes an interval in seconds".to_owned())
        } else {
            (Cause::Unknown, self.profile())
        };
        let evidence = vec![format!("RSS {sign}{} in {}", bytes(shown), duration(elapsed))];
        Finding { cause, bytes: grown, confidence: 0., evidence, to_do }
    }
}

fn finding(cause: Cause, bytes: u64, evidence: Vec<String>, to_do: &str) -> Option<Finding> {
    (bytes > 0).then(|| Finding { cause, bytes, confidence: 0., evidence, to_do: to_do.to_owned() })
}

#[expect(clippy::cast_precision_loss, reason = "a share")]
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0. } else { part as f64 / whole as f64 }
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a threshold"
)]
fn share_of(bytes: u64, share: f64) -> u64 {
    (bytes as f64 * share) as u64
}

#[cfg(test)]
mod tests;
