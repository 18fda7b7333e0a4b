//! Heap profiles that programs write themselves, or send when they are asked: each new one is read, and what grows from one to the
//! next is judged.
//!
//! In: the patterns of files and addresses in the configuration. Out: profiles in the history, the state of each source for
//! metrics, API and page, and the log.

use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::core::Shared;
use super::history::{Entry, History, Id};
use super::memory;
use super::outcome;
use super::profile::{push, store};
use crate::error_chain::chain;
use crate::profile::Profile;
use crate::session::{DumpSource, Dumps, MAX_DUMPED, Naming};

/// Interval of stored profiles of a process; one with a verdict that is news is stored at once.
const STORE_INTERVAL: Duration = Duration::from_secs(600);

/// All sources, by their names in the configuration.
pub(super) type Sources = Arc<Mutex<BTreeMap<String, Source>>>;

/// State of a source.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Source {
    /// Number of profiles read, and of attempts that failed.
    pub(super) read: u64,
    pub(super) failed: u64,
    /// Reason why the last attempt failed; `None` if it succeeded.
    pub(super) error: Option<String>,
    /// Its processes, by PID and time of the first profile.
    #[serde(serialize_with = "values")]
    pub(super) processes: BTreeMap<Key, Dumped>,
}

/// PID, or 0, and time of the first profile.
type Key = (u32, Timestamp);

/// A process, by its heap profiles.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Dumped {
    /// 0 if the profiles do not say.
    pub(super) pid: u32,
    pub(super) comm: String,
    /// Time of its last profile.
    pub(super) time: Timestamp,
    pub(super) live_bytes: u64,
    pub(super) judged: bool,
    pub(super) verdict: String,
    pub(super) leaking: usize,
    /// The call sites that leak most.
    pub(super) leaking_sites: Vec<String>,
    pub(super) leak_bytes_per_s: f64,
    /// The last profile in the history.
    pub(super) profile: Option<Id>,
    /// Number of leaks that the log has.
    #[serde(skip)]
    logged: usize,
    #[serde(skip)]
    stored_at: Option<Timestamp>,
    /// First profile of its series in the history.
    #[serde(skip)]
    series: Option<Id>,
}

fn values<S: serde::Serializer>(known: &BTreeMap<Key, Dumped>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(known.values())
}

/// Starts a thread for each source, because a server or a file system can hang.
pub(super) fn start(shared: &Shared) -> io::Result<()> {
    let config = shared.core().config.dumps.clone();
    let naming = Naming {
        headers: config.headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        ..Naming::default()
    };
    // A profile in memory takes several times its size.
    let reading = Arc::new(Mutex::new(()));
    for from in config.from {
        lock(&shared.dumps).insert(from.clone(), Source::default());
        let (shared, naming, reading) = (shared.clone(), naming.clone(), Arc::clone(&reading));
        let (interval, max_bytes) = (config.interval.0, config.max_bytes.0);
        thread::Builder::new().name("heap profiles".to_owned()).spawn(move || {
            // The configuration has no other patterns.
            let Ok(mut source) = DumpSource::new(&from, &naming, max_bytes) else { return };
            loop {
                let turn = lock(&reading);
                read(&mut source, &from, &shared);
                memory::trim();
                drop(turn);
                thread::sleep(interval);
            }
        })?;
    }
    Ok(())
}

pub(super) fn lock<T>(known: &Mutex<T>) -> MutexGuard<'_, T> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads and judges what is new of a source.
fn read(source: &mut DumpSource, from: &str, shared: &Shared) {
    // A profile can contain data that crashes its reader; that must cost no more than this profile.
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let Dumps { profiles, read, failed } = source.read_new();
        let failed: Vec<_> = failed.iter().map(|error| chain(error)).collect();
        note(from, shared, read, &failed);
        for profile in &profiles {
            judge(from, profile, shared);
        }
    }));
    if outcome.is_err() {
        note(from, shared, 0, &["internal error in jjleak; please report it".to_owned()]);
    }
}

/// Counts profiles, and logs a failure unless it is the same as the last.
fn note(from: &str, shared: &Shared, read: usize, failed: &[String]) {
    let mut known = lock(&shared.dumps);
    let known = known.entry(from.to_owned()).or_default();
    known.read += read as u64;
    known.failed += failed.len() as u64;
    for error in failed {
        if known.error.as_ref() != Some(error) {
            tracing::warn!("cannot read a heap profile of {from}: {error}");
        }
        known.error = Some(error.clone());
    }
    if failed.is_empty() && read > 0 {
        known.error = None;
    }
}

/// Notes the last profile of a process, stores it if that is due, and logs a verdict that is news.
fn judge(from: &str, profile: &Profile, shared: &Shared) {
    let key = (profile.process.pid, profile.started_at);
    let before = lock(&shared.dumps).get(from).and_then(|known| known.processes.get(&key).cloned());
    let why = format!("a heap profile of {from}");
    let entry = Entry::of(free_id(profile, &why, &shared.history()), profile, &why);
    let mut now = Dumped {
        pid: profile.process.pid,
        comm: profile.process.comm.clone(),
        time: profile.taken_at,
        live_bytes: entry.live_bytes,
        judged: entry.judged,
        verdict: entry.verdict.clone(),
        leaking: entry.leaking_sites,
        leaking_sites: entry.leaking.clone(),
        leak_bytes_per_s: entry.leak_rate,
        profile: before.as_ref().and_then(|before| before.profile.clone()),
        logged: before.as_ref().map_or(0, |before| before.logged),
        stored_at: before.as_ref().and_then(|before| before.stored_at),
        series: before.as_ref().and_then(|before| before.series.clone()),
    };
    // A leak on the edge of what can be told is lost and found again.
    let is_news =
        now.leaking > now.logged || before.as_ref().is_none_or(|before| before.judged != now.judged);
    now.logged = now.logged.max(now.leaking);
    let is_old = |at: Timestamp| profile.taken_at.duration_since(at).unsigned_abs() >= STORE_INTERVAL;
    if is_news || now.stored_at.is_none_or(is_old) {
        now.stored_at = Some(profile.taken_at);
        let entry = entry.in_series(&mut now.series);
        if let Some(id) = store(profile, entry, &shared.history) {
            if let Some(pusher) = &shared.pusher {
                push(pusher, &id, &shared.history);
            }
            now.profile = Some(id);
        }
    }
    let mut known = lock(&shared.dumps);
    let processes = &mut known.entry(from.to_owned()).or_default().processes;
    processes.insert(key, now.clone());
    while processes.len() > MAX_DUMPED {
        let oldest = processes.iter().min_by_key(|(_, dumped)| dumped.time).map(|(key, _)| *key);
        oldest.map(|key| processes.remove(&key));
    }
    drop(known);
    if is_news {
        now.log(from, shared);
    }
}

/// The ID of a profile in the history. Files of two programs without PIDs can be of one moment.
fn free_id(profile: &Profile, why: &str, history: &History) -> Id {
    let mut id = Id::of(profile);
    while history.get(&id).is_some_and(|entry| entry.why != why || entry.comm != profile.process.comm) {
        id = id.next();
    }
    id
}

impl Dumped {
    /// The name of the process to those who run it.
    pub(super) fn name(&self) -> String {
        if self.pid == 0 { self.comm.clone() } else { format!("{} (pid {})", self.comm, self.pid) }
    }

    /// Logs the verdict.
    fn log(&self, from: &str, shared: &Shared) {
        let Self { pid, leaking, verdict, .. } = self;
        let name = self.name();
        if self.leaking == 0 {
            tracing::info!(pid, "{name}, by its heap profiles {from}: {verdict}");
            return;
        }
        let listen = &shared.core().config.http.listen;
        let report = self.profile.as_ref().map_or_else(String::new, |id| outcome::report_at(listen, id));
        let worst = self.leaking_sites.first().map_or_else(String::new, |worst| format!("{worst}; "));
        tracing::warn!(pid, leaking, "{name} leaks, by its heap profiles {from}: {worst}{verdict}{report}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::sample;

    #[test]
    fn profiles_of_two_programs_at_one_moment_are_both_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (mut history, _) = History::open(folder.path()).unwrap();
        let mut profile = sample::profile();
        for (comm, kept) in [("one", 1), ("other", 2), ("one", 2)] {
            profile.process.comm = comm.to_owned();
            let id = free_id(&profile, "a test", &history);
            history.keep(&profile, Entry::of(id, &profile, "a test"), b"").unwrap();
            assert_eq!(history.entries().count(), kept, "{comm}");
        }
    }
}
