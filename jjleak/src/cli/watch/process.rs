//! One profiled process.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use jjleak_common::counter::Counter;
use jjleak_common::process::{ImageId, ProcessSlot};

use super::allocators::known_families;
use super::earlier::Program;
use super::image_files::ImageFiles;
use super::jvm::WatchedJvm;
use super::perf_map::WatchedPerfMap;
use crate::attach::{Tracked, now_ns};
use crate::cli::Failure;
use crate::cli::choice::Choice;
use crate::cli::failure::{OTHER, allowance};
use crate::cost::Spending;
use crate::processes::{ExitWatch, Mapping, ModuleTable, Pid, Process, Running, Unopened};
use crate::profile::{ProcessInfo, ProcessKind};

/// What is known of a process that is being profiled.
pub(super) struct Watched {
    pub(super) process: Process,
    pub(super) image: ImageId,
    /// The process that its memory is a copy of, until it runs another program.
    pub(super) forked_from: Option<Pid>,
    pub(super) command: Option<Running>,
    /// The program that was started, and how many folders it had libraries in when more were looked for.
    pub(super) started: Option<Program>,
    pub(super) folders: usize,
    pub(super) modules: ModuleTable,
    /// What the process mapped for execution when it was last looked at.
    pub(super) code: Vec<Mapping>,
    /// When that was, or it was met, if nobody has looked yet.
    pub(super) looked_at: Instant,
    /// The JVM that it is, if it is one.
    pub(super) jvm: WatchedJvm,
    /// The names that it writes down for other code that it generates.
    pub(super) perf_map: WatchedPerfMap,
    /// When accounting began, in nanoseconds of `CLOCK_MONOTONIC`: the wall clock is set and steps.
    pub(super) since_ns: u64,
    /// True if it is counted.
    pub(super) is_armed: bool,
    /// Files with allocators that were found while it was counted already.
    pub(super) late: ImageFiles,
    /// Programs that were over before they could be counted.
    pub(super) unseen: u64,
    /// When it was looked at last; how far it is known what the image had mapped, both in nanoseconds of `CLOCK_MONOTONIC`.
    pub(super) looked_ns: u64,
    pub(super) known_ns: u64,
    /// The last image that was over and was looked through for what had been missed.
    pub(super) closed: Option<ImageId>,
    /// The image whose mappings have been seen.
    seen: Option<ImageId>,
    /// Files with allocators that cannot be followed.
    pub(super) unfollowed: ImageFiles,
    /// Mapped files that could not be found before the process ended.
    pub(super) unseen_files: ImageFiles,
    /// When which image of it was judged last.
    pub(super) judged: Option<(ImageId, u64)>,
    /// Holds on to the process; `None` when it was over before anybody could.
    pub(super) exit: Option<Arc<ExitWatch>>,
    /// How it ended, once it has.
    pub(super) ended: Option<String>,
    /// The thread that the kernel finds the process by, if its probes are its own, how often it has ended, and how often
    /// another one has taken its place by `exec`.
    pub(super) bound_to: Option<Pid>,
    pub(super) times_unbound: u64,
    pub(super) times_replaced: u64,
    /// Whether its probes could not be bound to another one yet.
    pub(super) is_unbound: bool,
    /// How often it had forked when its children were last looked after.
    pub(super) times_forked: u64,
    /// What being profiled costs it.
    pub(super) spending: Spending,
}

impl Watched {
    pub(super) fn new(process: Process, image: ImageId) -> Self {
        Self {
            spending: Spending::begin(process.pid),
            process,
            image,
            forked_from: None,
            command: None,
            started: None,
            folders: 0,
            modules: ModuleTable::default(),
            code: Vec::new(),
            looked_at: Instant::now(),
            jvm: WatchedJvm::default(),
            perf_map: WatchedPerfMap::default(),
            since_ns: now_ns(),
            is_armed: false,
            late: ImageFiles::default(),
            unseen: 0,
            looked_ns: 0,
            known_ns: 0,
            closed: None,
            seen: None,
            unfollowed: ImageFiles::default(),
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

    /// What tells the program from others, if it has a build ID. Scripts have the one of what interprets them, and a name of
    /// their own.
    pub(super) fn program(&self) -> Option<Program> {
        let mut modules = self.modules.iter().map(|(_, module)| module);
        let module = modules.find(|module| module.path == self.process.exe)?;
        Program::new(module.build_id(), &self.process.comm)
    }

    pub(super) const fn pid(&self) -> Pid {
        self.process.pid
    }

    /// When accounting began and when a snapshot was taken, by the wall clock, of which it is known what it shows now and
    /// when that is. What is between them is as long as it was, however the clock is set meanwhile.
    pub(super) fn span(&self, taken_ns: u64, (now, at_ns): (Timestamp, u64)) -> (Timestamp, Timestamp) {
        let before = |time: Timestamp, duration_ns: u64| {
            time.saturating_sub(Duration::from_nanos(duration_ns)).unwrap_or(Timestamp::MIN)
        };
        let taken_at = before(now, at_ns.saturating_sub(taken_ns));
        (before(taken_at, taken_ns.saturating_sub(self.since_ns)), taken_at)
    }

    /// Counting begins, with probes in all that it maps: whatever else it has mapped by now is from before.
    pub(super) fn begin_counting(&mut self) {
        (self.is_armed, self.known_ns) = (true, now_ns());
    }

    /// Notes that the mappings of its image have been seen.
    pub(super) const fn note_seen(&mut self) {
        self.seen = Some(self.image);
    }

    pub(super) fn was_seen(&self, image: ImageId) -> bool {
        self.seen == Some(image)
    }

    /// Forgets the counted files of an image that is over.
    pub(super) fn forget_files(&mut self, image: ImageId) {
        if image != self.image {
            for files in [&mut self.late, &mut self.unfollowed, &mut self.unseen_files] {
                files.forget(image);
            }
        }
    }

    /// The process runs another program: what it mapped before is gone.
    pub(super) fn begin_image(&mut self, tracked: &Tracked) {
        self.image = tracked.image;
        self.known_ns = tracked.since_ns;
        self.forked_from = tracked.forked_from;
        self.modules = ModuleTable::default();
        self.jvm = WatchedJvm::default();
        self.perf_map = WatchedPerfMap::default();
        match Process::open(self.pid()) {
            // Its PID is its own for as long as it runs.
            Ok(process) if self.runs() => self.process = process,
            _ => {
                self.process.comm = tracked.name();
                self.process.exe = PathBuf::new();
            }
        }
    }

    /// Whether it runs; its PID can be another process's otherwise. How it ended is noted.
    pub(super) fn runs(&mut self) -> bool {
        if self.ended.is_none() && self.exit.as_ref().is_none_or(|exit| exit.has_ended()) {
            self.ended = Some(self.ending());
        }
        self.ended.is_none()
    }

    /// How the process ended, as far as it can be known.
    pub(super) fn ending(&mut self) -> String {
        let status = self.command.as_mut().and_then(Running::status);
        status.map_or_else(|| "exit status unknown".to_owned(), |status| status.to_string())
    }

    /// Adds what the user side has counted.
    pub(super) fn complete(&self, counters: &mut BTreeMap<Counter, u64>) {
        *counters.entry(Counter::ProbesUnbound).or_default() += self.times_unbound;
        *counters.entry(Counter::LateProbes).or_default() += self.late.count();
        *counters.entry(Counter::UnseenProgram).or_default() += self.unseen;
        *counters.entry(Counter::UnfollowedAllocator).or_default() += self.unfollowed.count();
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

    /// Why nothing of the process is counted.
    pub(super) fn has_no_allocator(&self, choice: &Choice) -> Failure {
        let pid = self.pid();
        let known = known_families();
        let mut what = format!("process {pid} maps no allocator that jjleak knows");
        let mut remedy = format!(
            "profile a process that uses {known}; if the allocator is in a stripped executable, install its debug \
             symbols, or name its functions (--allocators)"
        );
        if let Some((restriction, what_to_do)) = choice.restriction() {
            (what, remedy) = (format!("process {pid}: {restriction}"), what_to_do);
        }
        if let Some(Unopened { path, error }) = self.modules.unopened().next() {
            let (number, path) = (self.modules.unopened().count(), path.display());
            what = format!("{what}; {number} of its files cannot be opened, such as {path}: {error}");
            if error.kind() == ErrorKind::PermissionDenied {
                allowance().clone_into(&mut remedy);
            }
        }
        Failure::new(OTHER, what, remedy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::{FileId, ModuleFiles};

    #[test]
    fn a_clock_that_is_set_changes_neither_how_long_a_process_was_watched_nor_when_it_was_looked_at() {
        let pid = Pid::new(std::process::id()).unwrap();
        let mut watched = Watched::new(Process::open(pid).unwrap(), ImageId::first(ProcessSlot(0)));
        watched.since_ns = 5_000_000_000;
        let at = |second| Timestamp::from_second(second).unwrap();
        // The reading was 2 s after the snapshot.
        for now in [1_000_000, 900_000, 2_000_000] {
            let span = watched.span(65_000_000_000, (at(now), 67_000_000_000));
            assert_eq!(span, (at(now - 62), at(now - 2)));
        }
        // Only just taken in.
        assert_eq!(watched.span(4_000_000_000, (at(10), 4_000_000_000)), (at(10), at(10)));
    }

    #[test]
    fn a_process_without_an_allocator_is_told_from_one_whose_files_cannot_be_opened() {
        let pid = Pid::new(std::process::id()).unwrap();
        let mut watched = Watched::new(Process::open(pid).unwrap(), ImageId::first(ProcessSlot(0)));
        let told = watched.has_no_allocator(&Choice::default()).to_string();
        assert!(told.ends_with("maps no allocator that jjleak knows"), "{told}");
        let gone = Mapping {
            addresses: 0..4096,
            executable: true,
            file_offset: 0,
            file: Some(FileId { device: (0, 0), inode: 1 }),
            path: PathBuf::from("/nonexistent/libc.so.6"),
            deleted: false,
        };
        watched.modules.refresh(&mut ModuleFiles::default(), pid, &[gone]);
        let told = watched.has_no_allocator(&Choice::default()).to_string();
        assert!(
            told.contains("1 of its files cannot be opened, such as /nonexistent/libc.so.6: No such"),
            "{told}"
        );
    }
}
