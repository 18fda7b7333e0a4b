//! Scan of a process, with what its allocator and its JVM say of it.

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use aya::util::online_cpus;

use super::glibc::{self, ProcessPages, Usage};
use super::hotspot::{JvmMemory, PresentMemory};
use super::scan::areas;
use super::{Claim, Kind, Libraries, Row, Scan, Use, go, stacks, uses};
use crate::jvm::{self, Memory, ProcessMemory};
use crate::processes::{Error, GroupMemory, Mapping, MemoryLimit, ModuleTable, Pid};

/// Resident memory of a process, and what is known of its use.
#[derive(Debug, Clone)]
pub struct ProcessScan {
    /// Resident memory by use.
    pub scan: Scan,
    /// The JVM, if there is one and its description could be read.
    pub jvm: Option<JvmMemory>,
    /// Chunks of the C library's malloc, if they could be read; with those that have a mapping of their own.
    pub malloc: Option<Usage>,
    /// Arenas of malloc, if they could be read.
    pub arenas: Option<usize>,
    /// CPUs of the host: they decide how many arenas malloc makes.
    pub cpus: usize,
    /// Number of threads.
    pub threads: usize,
    /// Bytes of page tables, which RSS does not contain.
    pub page_tables: u64,
    /// The limit with the least memory left, of the control group or of the machine.
    pub limit: Option<MemoryLimit>,
    /// Memory of the control group, if there is one.
    pub control_group: Option<GroupMemory>,
    /// Structures that could not be read, with the reasons.
    pub unknown: Vec<String>,
}

impl ProcessScan {
    /// Scans a process. Nothing in it is stopped, run or made resident. Reading the arenas of malloc takes at most `arena_time`:
    /// a second for about 2 GiB of small chunks.
    ///
    /// # Errors
    ///
    /// The process has ended, has no memory of its own, or must not be read.
    pub fn of(pid: Pid, arena_time: Duration) -> Result<Self, Error> {
        Self::with(pid, arena_time, &mut Libraries::default())
    }

    /// As [`Self::of`], for one of several processes.
    ///
    /// # Errors
    ///
    /// As with [`Self::of`].
    pub fn with(pid: Pid, arena_time: Duration, libraries: &mut Libraries) -> Result<Self, Error> {
        let mappings = Mapping::all(pid)?;
        let mut unknown = Vec::new();
        let mut modules = ModuleTable::default();
        modules.refresh(&mut libraries.files, pid, &mappings);
        let jvm = read_jvm(pid, &mappings, &modules, libraries).unwrap_or_else(|reason| {
            unknown.push(format!("the JVM's structures could not be read: {reason}"));
            None
        });
        let arenas = read_arenas(pid, &mappings, arena_time).unwrap_or_else(|reason| {
            unknown.push(format!("malloc's arenas could not be read: {reason}"));
            None
        });
        let mut claims: Vec<_> = jvm.iter().flat_map(JvmMemory::ranges).map(of_jvm).collect();
        claims.extend(arenas.iter().flat_map(glibc::Arenas::ranges).map(|range| Claim {
            range,
            kind: Kind::MallocLive,
            name: String::new(),
        }));
        // Go's threads have their stacks in its heap.
        claims.extend(go::heap(&modules, &mappings));
        claims.extend(stacks::of_native_threads(pid, &mappings));
        let number = arenas.as_ref().map(|arenas| arenas.arenas.len());
        let malloc = arenas.and_then(|arenas| {
            let failed = |reason| unknown.push(format!("malloc's chunks could not be read: {reason}"));
            let mut usage = arenas.total().map_err(failed).ok()?;
            if let Some(mapped) = arenas.mapped {
                if !mapped.ranges.is_empty() {
                    usage.live += mapped.chunks;
                } else if mapped.chunks.count > 0 {
                    let glibc::Chunks { count, bytes } = mapped.chunks;
                    unknown.push(format!(
                        "{count} chunks of malloc that have mappings of their own, {bytes} bytes in all, were not found: they count as anonymous"
                    ));
                }
            }
            Some(usage)
        });
        let mut scan = Scan::of(pid, &claims)?;
        if let Some(usage) = &malloc {
            let free = usage.free.trimmable.saturating_add(usage.free.kept);
            divide(&mut scan.rows, Kind::MallocLive, Kind::MallocFree, free);
        }
        let control_group = GroupMemory::of(pid);
        let cpus = online_cpus().map_or(1, |cpus| cpus.len());
        Ok(Self {
            scan,
            jvm,
            malloc,
            arenas: number,
            cpus,
            threads: threads(pid),
            page_tables: page_tables(pid),
            limit: MemoryLimit::of(pid),
            control_group,
            unknown,
        })
    }
}

/// Divides the memory of a process by its uses, in ascending order. Chunks of malloc are not told apart. What cannot be read is left to
/// the mapping.
///
/// # Errors
///
/// The process has ended, has no memory of its own, or must not be read.
pub fn uses_of(pid: Pid) -> Result<Vec<Use>, Error> {
    let mappings = Mapping::all(pid)?;
    let mut libraries = Libraries::default();
    let mut modules = ModuleTable::default();
    modules.refresh(&mut libraries.files, pid, &mappings);
    let jvm = read_jvm(pid, &mappings, &modules, &mut libraries).unwrap_or_default();
    let mut claims: Vec<_> = jvm.iter().flat_map(JvmMemory::ranges).map(of_jvm).collect();
    let opened = ProcessMemory::open(pid).and_then(|memory| Ok((memory, ProcessPages::open(pid)?)));
    let of_malloc = opened.ok().and_then(|(memory, pages)| glibc::ranges(&memory, &pages, &mappings).ok());
    claims.extend(of_malloc.into_iter().flatten().map(|range| Claim {
        range,
        kind: Kind::MallocLive,
        name: String::new(),
    }));
    claims.extend(go::heap(&modules, &mappings));
    claims.extend(stacks::of_native_threads(pid, &mappings));
    Ok(uses(&areas(pid)?, &claims))
}

/// The JVM in a process; `None` without one.
fn read_jvm(
    pid: Pid,
    mappings: &[Mapping],
    modules: &ModuleTable,
    libraries: &mut Libraries,
) -> Result<Option<JvmMemory>, String> {
    let Some((library, bias)) = jvm::library(mappings, modules) else { return Ok(None) };
    let reason = |error: &dyn std::error::Error| error.to_string();
    let symbols = libraries.symbols(library)?;
    let described = ProcessMemory::open(pid).map_err(|error| reason(&error))?;
    let present = PresentMemory::open(pid).map_err(|error| reason(&error))?;
    let read = JvmMemory::read(&described, &present, symbols.variables_above(bias), mappings);
    read.map(Some).map_err(|error| reason(&error))
}

/// Arenas of glibc, in its library or in a static program; `None` if the process has neither.
fn read_arenas(pid: Pid, mappings: &[Mapping], time: Duration) -> Result<Option<glibc::Arenas>, String> {
    let is_c_library = |mapping: &Mapping| {
        let name = mapping.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name == "libc.so.6" || name.starts_with("libc-2.")
    };
    let maps_library = mappings.iter().any(is_c_library);
    let open = || -> io::Result<_> { Ok((ProcessMemory::open(pid)?, ProcessPages::open(pid)?)) };
    let (memory, pages) = open().map_err(|error| error.to_string())?;
    let memory = Timed { memory, end: Instant::now() + time, is_late: Cell::new(false) };
    let read = glibc::read(&memory, &pages, mappings);
    if memory.is_late.get() {
        return Err(format!("it takes more than {} ms", time.as_millis()));
    }
    let has_break = mappings.iter().any(|mapping| mapping.path.as_os_str() == "[heap]");
    match read {
        // A static program with another C library, or without one.
        Err(glibc::Unknown::NoArena) if !maps_library => Ok(None),
        // Its malloc has never been used: another allocator serves the program, or it has allocated nothing yet.
        Err(glibc::Unknown::NoArena) if !has_break => {
            Ok(Some(glibc::Arenas { arenas: Vec::new(), thread_caches: 0, mapped: None }))
        }
        read => read.map(Some).map_err(|error| error.to_string()),
    }
}

/// Memory that cannot be read any more from some time on.
struct Timed<M> {
    memory: M,
    end: Instant,
    is_late: Cell<bool>,
}

impl<M: Memory> Memory for Timed<M> {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        if self.is_late.get() || Instant::now() > self.end {
            self.is_late.set(true);
            return 0;
        }
        self.memory.read(address, into)
    }
}

fn of_jvm((range, kind, name): (Range<u64>, Kind, String)) -> Claim {
    // All stacks are one row.
    let name = if kind == Kind::ThreadStacks { stacks::OF_JAVA.to_owned() } else { name };
    Claim { range, kind, name }
}

/// Moves up to so many resident bytes of one kind to another.
fn divide(rows: &mut Vec<Row>, from: Kind, to: Kind, bytes: u64) {
    let Some(row) = rows.iter_mut().find(|row| row.kind == from) else { return };
    let bytes = bytes.min(row.resident);
    row.resident -= bytes;
    let name = row.name.clone();
    rows.push(Row { kind: to, name, resident: bytes });
    rows.retain(|row| row.resident > 0);
    rows.sort_by_key(|row| std::cmp::Reverse(row.resident));
}

/// `VmPTE` of `/proc/PID/status`, which is in KiB; 0 if it cannot be read.
fn page_tables(pid: Pid) -> u64 {
    let status = std::fs::read_to_string(pid.proc_file("status")).unwrap_or_default();
    let number = status.lines().find_map(|line| line.strip_prefix("VmPTE:")?.trim().strip_suffix(" kB"));
    number.and_then(|number| number.parse::<u64>().ok()).unwrap_or_default() << 10
}

fn threads(pid: Pid) -> usize {
    std::fs::read_dir(pid.proc_file("task")).map_or(0, Iterator::count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_this_process_add_up_and_have_its_allocator() {
        let kept: Vec<Vec<u8>> = (0..1000).map(|_| vec![1; 5000]).collect();
        let own = ProcessScan::of(Pid::new(std::process::id()).unwrap(), Duration::from_secs(2)).unwrap();
        assert_eq!(own.scan.rows.iter().map(|row| row.resident).sum::<u64>(), own.scan.resident);
        assert!(own.jvm.is_none() && own.threads > 0);
        drop(kept);
    }

    #[test]
    fn memory_is_not_read_any_more_after_its_time() {
        let word = 7_u64;
        let at = (&raw const word).addr() as u64;
        let read = |end| {
            let memory = ProcessMemory::open(Pid::new(std::process::id()).unwrap()).unwrap();
            let timed = Timed { memory, end, is_late: Cell::new(false) };
            (timed.read(at, &mut [0; 8]), timed.is_late.get())
        };
        assert_eq!(read(Instant::now() + Duration::from_secs(60)), (8, false));
        assert_eq!(read(Instant::now().checked_sub(Duration::from_secs(1)).unwrap()), (0, true));
    }

    #[test]
    fn free_pages_are_a_row_of_their_own() {
        let row = |kind, resident| Row { kind, name: String::new(), resident };
        let mut rows = vec![row(Kind::MallocLive, 100), row(Kind::File, 50)];
        divide(&mut rows, Kind::MallocLive, Kind::MallocFree, 30);
        assert_eq!(rows, [row(Kind::MallocLive, 70), row(Kind::File, 50), row(Kind::MallocFree, 30)]);
        divide(&mut rows, Kind::MallocLive, Kind::MallocCache, 1000);
        assert!(rows.contains(&row(Kind::MallocCache, 70)) && rows.iter().all(|row| row.resident > 0));
    }
}
