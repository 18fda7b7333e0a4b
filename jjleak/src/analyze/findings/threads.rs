//! Call sites that grow because threads are started and never end.

use crate::profile::{SharedFrame, Totals, Verdict};

/// Functions that start a thread, as beginnings of names.
const STARTERS: [&str; 9] = [
    "pthread_create",
    "__pthread_create",
    "thrd_create",
    "_dl_allocate_tls",
    "os::create_thread(",
    "JVM_StartThread",
    "JavaThread::JavaThread(",
    "java.lang.Thread.start",
    "java.lang.ThreadBuilders",
];

/// Functions at the root of a thread's stacks.
const ROOTS: [&str; 4] = ["start_thread", "thread_native_entry", "clone3", "__clone"];

/// Functions that allocate exactly one block for each thread: of the C library, and of HotSpot.
const ONE_PER_THREAD: [&str; 2] = ["_dl_allocate_tls", "Thread::allocate("];

fn has(frames: &[SharedFrame], names: &[&str]) -> bool {
    frames.iter().any(|frame| names.iter().any(|name| frame.symbol.starts_with(name)))
}

/// Returns true if these frames start a thread.
pub(super) fn start_one(frames: &[SharedFrame]) -> bool {
    has(frames, &STARTERS)
}

/// Returns true if the stack is of the runtime's own work in a thread that somebody started.
pub(super) fn run_in_one(frames: &[SharedFrame]) -> bool {
    has(frames, &ROOTS)
}

/// Number of live threads and their growth per second, by what is allocated once for each; `None` if that is not among the sites.
#[expect(clippy::cast_precision_loss, reason = "numbers of threads are small")]
pub(super) fn count(verdicts: &[&Verdict]) -> Option<(u64, f64)> {
    let counted = |function: &str| {
        let each = || verdicts.iter().filter(|verdict| has(&verdict.frames.list(), &[function]));
        let live: Totals = each().map(|verdict| verdict.live).sum();
        let rate: f64 = each().filter_map(|verdict| verdict.rate).map(|rate| rate.per_second).sum();
        let size = live.bytes as f64 / live.objects.max(1) as f64;
        (live.objects, rate / size.max(1.))
    };
    let counts = ONE_PER_THREAD.map(counted).into_iter().filter(|(threads, _)| *threads > 0);
    counts.max_by_key(|(threads, _)| *threads)
}
