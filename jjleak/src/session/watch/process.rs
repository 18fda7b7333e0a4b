//! One profiled process.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use jjleak_common::counter::Counter;
use jjleak_common::process::{ImageId, ProcessSlot};

use super::agent_request::ToldJvm;
use super::earlier_runs::Program;
use super::image_files::ImageFiles;
use super::jvm::WatchedJvm;
use super::perf_map::WatchedPerfMap;
use crate::allocators::OLDEST_JDK_WITH_HEAP;
use crate::attach::{Tracked, now_ns};
use crate::cost::Spending;
use crate::jvm::{self, Jvm};
use crate::processes::{ExitWatch, Mapping, ModuleTable, Pid, Process, Running, Unopened};
use crate::profile::{ProcessInfo, ProcessKind};
use crate::session::{AllocatorChoice, Error, NoAllocator, NoJavaHeap, NoSamples, Probed, UnopenedFiles};

/// Warnings that are given once for a process.
#[derive(Default)]
pub(super) struct Warned {
    /// It has more mappings than jjleak reads.
    pub(super) of_mappings: bool,
    /// It has more mappings of code than the kernel side can hold.
    pub(super) of_code_mappings: bool,
}

/// State of a profiled process.
pub(super) struct Watched {
    pub(super) process: Process,
    pub(super) image: ImageId,
    /// Begin of the image if it began while jjleak looked, or of watching, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(super) image_since_ns: u64,
    /// Process of which its memory is a copy, until it runs another program.
    pub(super) forked_from: Option<Pid>,
    pub(super) command: Option<Running>,
    /// The program started by jjleak, and the number of its library folders at the last search for files that it may
    /// map.
    pub(super) started: Option<Program>,
    pub(super) folders: usize,
    /// Programs whose earlier runs tell what it may map: itself, and those that its arguments name.
    pub(super) prepared_as: Vec<Program>,
    pub(super) modules: ModuleTable,
    /// Executable mappings at the last scan.
    pub(super) code: Vec<Mapping>,
    /// Time of the last scan, or of adding the process if there was none.
    pub(super) scanned_at: Instant,
    /// State of its JVM, if it has one.
    pub(super) jvm: WatchedJvm,
    /// Names in its perf map, for other generated code.
    pub(super) perf_map: WatchedPerfMap,
    /// Requests to its JVM to sample new libraries.
    pub(super) told: ToldJvm,
    /// What the user has been warned of.
    pub(super) warned: Warned,
    /// Start of accounting, in nanoseconds of `CLOCK_MONOTONIC`, because the wall clock can be set.
    pub(super) since_ns: u64,
    /// True if the process is counted.
    pub(super) is_armed: bool,
    /// Files with allocators that were found after counting had begun.
    pub(super) late: ImageFiles,
    /// Number of programs that were over before they could be counted.
    pub(super) unseen: u64,
    /// Start of the last scan; and the time up to which the image's mappings are known. Both in nanoseconds of
    /// `CLOCK_MONOTONIC`.
    pub(super) scanned_ns: u64,
    pub(super) known_ns: u64,
    /// Last image that is over and was searched for missed files.
    pub(super) closed: Option<ImageId>,
    /// Image whose mappings were scanned.
    seen: Option<ImageId>,
    /// Files with allocators that cannot be followed.
    pub(super) unfollowed: ImageFiles,
    /// Files whose rows do not fit the unwinder's tables.
    pub(super) unfit: ImageFiles,
    /// Number of copies of unfinished stacks that were dropped for lack of room.
    pub(super) lost_copies: u64,
    /// New stacks, for which symbols have not been read ahead.
    pub(super) unnamed: Vec<u32>,
    /// Mapped files that were not found before the process ended.
    pub(super) unseen_files: ImageFiles,
    /// Last judged image, and the time of its judgement.
    pub(super) judged: Option<(ImageId, u64)>,
    /// Keeps the process identifiable; `None` if it was over before it could be opened.
    pub(super) exit: Option<Arc<ExitWatch>>,
    /// Exit status or reason, once the process has ended.
    pub(super) ended: Option<String>,
    /// The thread by which the kernel finds the process, if the probes are the process's own; the number of times
    /// that it has ended, and that another thread has replaced it by `exec`.
    pub(super) bound_to: Option<Pid>,
    pub(super) times_unbound: u64,
    pub(super) times_replaced: u64,
    /// True while its probes could not be bound to another thread.
    pub(super) is_unbound: bool,
    /// Number of forks when probes were last removed from its children.
    pub(super) times_forked: u64,
    /// Cost of being profiled.
    pub(super) spending: Spending,
}

impl Watched {
    pub(super) fn new(process: Process, image: ImageId) -> Self {
        Self {
            spending: Spending::begin(process.pid),
            process,
            image,
            image_since_ns: now_ns(),
            forked_from: None,
            command: None,
            started: None,
            folders: 0,
            prepared_as: Vec::new(),
            modules: ModuleTable::default(),
            code: Vec::new(),
            scanned_at: Instant::now(),
            jvm: WatchedJvm::default(),
            perf_map: WatchedPerfMap::default(),
            told: ToldJvm::default(),
            since_ns: now_ns(),
            is_armed: false,
            late: ImageFiles::default(),
            unseen: 0,
            scanned_ns: 0,
            known_ns: 0,
            closed: None,
            seen: None,
            unfollowed: ImageFiles::default(),
            unfit: ImageFiles::default(),
            warned: Warned::default(),
            lost_copies: 0,
            unnamed: Vec::new(),
            unseen_files: ImageFiles::default(),
            judged: None,
            exit: None,
            ended: None,
            bound_to: None,
            times_unbound: 0,
            times_replaced: 0,
            is_unbound: false,
            times_forked: 0,
        }
    }

    pub(super) const fn slot(&self) -> ProcessSlot {
        self.image.slot()
    }

    /// Identity of its program. A script has its interpreter's key, and a name of its own.
    pub(super) fn program(&self) -> Option<Program> {
        let mut modules = self.modules.iter().map(|(_, module)| module);
        let module = modules.find(|module| module.path == self.process.exe)?;
        Some(Program::new(&module.key(), &self.process.comm))
    }

    pub(super) const fn pid(&self) -> Pid {
        self.process.pid
    }

    /// Start of accounting and time of a snapshot, by the wall clock. `now` is a reading of the wall clock at the
    /// time `at_ns`. The duration between the two results is right even if the clock was set meanwhile.
    pub(super) fn span(&self, taken_ns: u64, (now, at_ns): (Timestamp, u64)) -> (Timestamp, Timestamp) {
        let before = |time: Timestamp, duration_ns: u64| {
            time.saturating_sub(Duration::from_nanos(duration_ns)).unwrap_or(Timestamp::MIN)
        };
        let taken_at = before(now, at_ns.saturating_sub(taken_ns));
        (before(taken_at, taken_ns.saturating_sub(self.since_ns)), taken_at)
    }

    /// Begins counting, once all mapped files have probes. Allocations of other files up to now are from before
    /// counting.
    pub(super) fn begin_counting(&mut self) {
        (self.is_armed, self.known_ns) = (true, now_ns());
    }

    /// Notes that the mappings of the image were scanned.
    pub(super) const fn note_seen(&mut self) {
        self.seen = Some(self.image);
    }

    pub(super) fn was_seen(&self, image: ImageId) -> bool {
        self.seen == Some(image)
    }

    /// Forgets the counted files of an image that is over.
    pub(super) fn forget_files(&mut self, image: ImageId) {
        if image != self.image {
            for files in [&mut self.late, &mut self.unfollowed, &mut self.unfit, &mut self.unseen_files] {
                files.forget(image);
            }
        }
    }

    /// Begins another image: the process runs another program, and the mappings of the old one are gone.
    pub(super) fn begin_image(&mut self, tracked: &Tracked) {
        self.image = tracked.image;
        (self.image_since_ns, self.known_ns) = (tracked.since_ns, tracked.since_ns);
        self.forked_from = tracked.forked_from;
        self.modules = ModuleTable::default();
        self.jvm = WatchedJvm::default();
        self.perf_map = WatchedPerfMap::default();
        match Process::open(self.pid()) {
            // The PID cannot be reused while the process runs.
            Ok(process) if self.runs() => self.process = process,
            _ => {
                self.process.comm = tracked.name();
                self.process.exe = PathBuf::new();
            }
        }
    }

    /// Returns true while the process runs; afterwards its PID can be another process's. Notes how it ended.
    pub(super) fn runs(&mut self) -> bool {
        if self.ended.is_none() && self.exit.as_ref().is_none_or(|exit| exit.has_ended()) {
            self.ended = Some(self.ending());
        }
        self.ended.is_none()
    }

    /// Exit status of the process, as far as it is known.
    pub(super) fn ending(&mut self) -> String {
        let status = self.command.as_mut().and_then(Running::status);
        status.map_or_else(|| "exit status unknown".to_owned(), |status| status.to_string())
    }

    /// Adds the events counted by the user side.
    pub(super) fn complete(&self, counters: &mut BTreeMap<Counter, u64>) {
        *counters.entry(Counter::ProbesUnbound).or_default() += self.times_unbound;
        *counters.entry(Counter::LateProbes).or_default() += self.late.count();
        *counters.entry(Counter::UnseenProgram).or_default() += self.unseen;
        *counters.entry(Counter::UnfollowedAllocator).or_default() += self.unfollowed.count();
        *counters.entry(Counter::UnwindTablesFull).or_default() += self.unfit.count();
        *counters.entry(Counter::StackCopiesLost).or_default() += self.lost_copies;
        *counters.entry(Counter::UnseenFile).or_default() += self.unseen_files.count();
        *counters.entry(Counter::UnnamedCode).or_default() += self.jvm.unnamed();
    }

    pub(super) fn info(&self) -> ProcessInfo {
        let number = |pid: Pid| pid.number().get();
        ProcessInfo {
            pid: number(self.pid()),
            start_time: self.process.start_time,
            comm: self.process.comm.clone(),
            exe: self.process.exe.to_string_lossy().into_owned(),
            kind: if self.jvm.is_known() { ProcessKind::Jvm } else { ProcessKind::Native },
            forked_from: self.forked_from.map(number),
            container_pid: self.process.container_pid.map(number),
        }
    }

    /// Error for a process of which nothing is counted, with the reason.
    pub(super) fn is_not_counted(&self, choice: &AllocatorChoice) -> Error {
        match choice.probed {
            Probed::JavaHeap => self.has_no_java_heap().into(),
            Probed::Samples => NoSamples(self.pid()).into(),
            Probed::Allocators | Probed::NamedOnly | Probed::Nothing => self.has_no_allocator(choice).into(),
        }
    }

    fn has_no_java_heap(&self) -> NoJavaHeap {
        let pid = self.pid();
        let library = self.modules.iter().find(|(_, module)| jvm::has_name(module));
        let Some((_, library)) = library else { return NoJavaHeap::NoJvm(pid) };
        match self.jvm.jvm().map(Jvm::version) {
            Some(version) if version < OLDEST_JDK_WITH_HEAP => NoJavaHeap::Old { pid, version },
            _ => NoJavaHeap::NoSymbols { pid, library: library.path.clone() },
        }
    }

    fn has_no_allocator(&self, choice: &AllocatorChoice) -> NoAllocator {
        let first = self.modules.unopened().next();
        let unopened = first.map(|Unopened { path, error }| UnopenedFiles {
            number: self.modules.unopened().count(),
            example: path.clone(),
            error: error.to_string(),
            is_forbidden: error.kind() == ErrorKind::PermissionDenied,
        });
        NoAllocator { pid: self.pid(), only: choice.only.clone(), unopened }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::{FileId, ModuleFiles};

    #[test]
    fn a_clock_that_is_set_changes_neither_how_long_a_process_was_watched_nor_when_it_was_examined() {
        let pid = Pid::new(std::process::id()).unwrap();
        let mut watched = Watched::new(Process::open(pid).unwrap(), ImageId::first(ProcessSlot(0)));
        watched.since_ns = 5_000_000_000;
        let at = |second| Timestamp::from_second(second).unwrap();
        // The clock was read 2 s after the snapshot.
        for now in [1_000_000, 900_000, 2_000_000] {
            let span = watched.span(65_000_000_000, (at(now), 67_000_000_000));
            assert_eq!(span, (at(now - 62), at(now - 2)));
        }
        // A process that was just added.
        assert_eq!(watched.span(4_000_000_000, (at(10), 4_000_000_000)), (at(10), at(10)));
    }

    #[test]
    fn a_process_without_an_allocator_is_distinguished_from_one_whose_files_cannot_be_opened() {
        let pid = Pid::new(std::process::id()).unwrap();
        let mut watched = Watched::new(Process::open(pid).unwrap(), ImageId::first(ProcessSlot(0)));
        let message = watched.has_no_allocator(&AllocatorChoice::default()).to_string();
        assert!(message.ends_with("maps no allocator that jjleak knows"), "{message}");
        let gone = Mapping {
            addresses: 0..4096,
            executable: true,
            file_offset: 0,
            file: Some(FileId { device: (0, 0), inode: 1 }),
            path: PathBuf::from("/nonexistent/libc.so.6"),
            deleted: false,
        };
        watched.modules.refresh(&mut ModuleFiles::default(), pid, &[gone]);
        let message = watched.has_no_allocator(&AllocatorChoice::default()).to_string();
        assert!(
            message.contains("1 of its files cannot be opened, such as /nonexistent/libc.so.6: No such"),
            "{message}"
        );
    }
}
