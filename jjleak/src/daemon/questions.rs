//! Questions that a process may never answer: a read of its memory, or of the list of its mappings, waits as long as a file
//! system that it maps files of does not respond, and a process can be the server of that file system.
//!
//! Each question is put on a thread that is not waited for longer than [`PATIENCE`]. A thread that is stuck stays until its question
//! is answered. Their number is bounded, also for each user, so that nobody can keep the processes of others from being asked.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Debug, Formatter};
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::processes::Pid;

/// Time after which a question counts as unanswered. The longest lists of mappings take 20 ms.
const PATIENCE: Duration = Duration::from_millis(200);
/// Maximum number of stuck threads: each is a task of the unit, which allows 64.
const MAX_STUCK: usize = 8;
/// Maximum number of stuck threads for the processes of one user.
const MAX_STUCK_OF_USER: usize = 2;
/// Stack of a thread, which only reads a file.
const STACK_BYTES: usize = 256 << 10;

/// A process that is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Subject {
    /// The process.
    pub(super) pid: Pid,
    /// Its start time.
    pub(super) start_time: u64,
    /// Its user.
    pub(super) user: u32,
}

/// Answers of the processes that have answered.
pub(super) type Answers<A> = BTreeMap<Pid, A>;

pub(super) type Question<A> = Box<dyn FnOnce() -> A + Send>;

/// Asks processes questions of one kind.
pub(super) struct Questions<A>(Arc<Shared<A>>);

struct Shared<A> {
    state: Mutex<State<A>>,
    answered: Condvar,
}

struct State<A> {
    waiting: VecDeque<(Subject, Question<A>)>,
    /// Processes that are being asked, one by each thread, and since when.
    asked: BTreeMap<Subject, Instant>,
    /// Number of threads.
    threads: usize,
    answers: Answers<A>,
}

impl<A: Send + 'static> Questions<A> {
    pub(super) fn new() -> Self {
        let (waiting, asked, answers) = (VecDeque::new(), BTreeMap::new(), BTreeMap::new());
        let state = Mutex::new(State { waiting, asked, threads: 0, answers });
        Self(Arc::new(Shared { state, answered: Condvar::new() }))
    }

    /// Asks processes, and waits for their answers, at most for `wait`. Those that do not answer are not in the result. Not to be
    /// called by two threads at a time.
    pub(super) fn ask(
        &self,
        questions: impl IntoIterator<Item = (Subject, Question<A>)>,
        wait: Duration,
    ) -> Answers<A> {
        let end = Instant::now() + wait;
        let mut state = self.0.state();
        let State { waiting, asked, answers, .. } = &mut *state;
        answers.clear();
        waiting.extend(questions.into_iter().filter(|(subject, _)| !asked.contains_key(subject)));
        loop {
            let now = Instant::now();
            state.refuse(now);
            let stuck = state.stuck(now).count();
            let is_busy = state.threads > stuck;
            if now >= end || state.waiting.is_empty() && !is_busy {
                break;
            }
            if !is_busy {
                // Without another thread, the processes stay unanswered, and are asked again later.
                if stuck >= MAX_STUCK || !self.start_thread() {
                    break;
                }
                state.threads += 1;
            }
            let rest = state.next_stuck(now).min(end - now);
            let waited = self.0.answered.wait_timeout(state, rest);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.waiting.clear();
        mem::take(&mut state.answers)
    }

    /// Returns false if no thread can be started.
    fn start_thread(&self) -> bool {
        let shared = Arc::clone(&self.0);
        let thread = thread::Builder::new().name("question".to_owned()).stack_size(STACK_BYTES);
        thread.spawn(move || shared.work()).is_ok()
    }
}

impl<A> Debug for Questions<A> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Questions").finish_non_exhaustive()
    }
}

impl<A> Shared<A> {
    fn state(&self) -> MutexGuard<'_, State<A>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers questions until none waits.
    fn work(&self) {
        let mut state = self.state();
        while let Some((subject, question)) = state.waiting.pop_front() {
            state.asked.insert(subject, Instant::now());
            drop(state);
            let answer = question();
            state = self.state();
            state.asked.remove(&subject);
            state.answers.insert(subject.pid, answer);
            self.answered.notify_all();
        }
        state.threads -= 1;
        self.answered.notify_all();
    }
}

impl<A> State<A> {
    /// Processes that should have answered.
    fn stuck(&self, now: Instant) -> impl Iterator<Item = &Subject> {
        let is_late = move |since: &Instant| now.saturating_duration_since(*since) >= PATIENCE;
        self.asked.iter().filter(move |(_, since)| is_late(since)).map(|(subject, _)| subject)
    }

    /// Time until another process should have answered.
    fn next_stuck(&self, now: Instant) -> Duration {
        let rest = self.asked.values().map(|since| (*since + PATIENCE).saturating_duration_since(now));
        rest.filter(|rest| !rest.is_zero()).min().unwrap_or(PATIENCE)
    }

    /// Drops the questions to processes of users who have stuck threads enough.
    fn refuse(&mut self, now: Instant) {
        let mut of_users = BTreeMap::<u32, usize>::new();
        self.stuck(now).for_each(|subject| *of_users.entry(subject.user).or_default() += 1);
        of_users.retain(|_, stuck| *stuck >= MAX_STUCK_OF_USER);
        if !of_users.is_empty() {
            self.waiting.retain(|(subject, _)| !of_users.contains_key(&subject.user));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Much longer than any test takes.
    const LONG: Duration = Duration::from_secs(60);

    fn subject(pid: u32, user: u32) -> Subject {
        Subject { pid: Pid::new(pid).unwrap(), start_time: 1, user }
    }

    fn prompt(pid: u32, user: u32) -> (Subject, Question<u32>) {
        (subject(pid, user), Box::new(move || pid))
    }

    /// A question that is answered when the sender is dropped.
    fn blocked(pid: u32, user: u32) -> (Sender<()>, (Subject, Question<u32>)) {
        let (hold, end) = channel::<()>();
        let question = move || {
            let _ = end.recv();
            pid
        };
        (hold, (subject(pid, user), Box::new(question)))
    }

    fn pids(answers: &Answers<u32>) -> Vec<u32> {
        answers.values().copied().collect()
    }

    #[test]
    fn all_that_answer_are_heard_and_no_thread_stays() {
        let questions = Questions::new();
        let answers = questions.ask((1..=300).map(|pid| prompt(pid, 0)), LONG);
        assert_eq!(pids(&answers), (1..=300).collect::<Vec<_>>());
        assert_eq!(questions.0.state().threads, 0);
        assert!(questions.ask([], LONG).is_empty());
    }

    #[test]
    fn a_process_that_does_not_answer_keeps_nobody_else_from_it() {
        let questions = Questions::new();
        let (hold, question) = blocked(2, 0);
        assert_eq!(pids(&questions.ask([prompt(1, 0), question, prompt(3, 0)], LONG)), [1, 3]);
        // It is not asked again meanwhile.
        assert_eq!(pids(&questions.ask([prompt(2, 0), prompt(4, 0)], LONG)), [4]);
        assert_eq!(questions.0.state().asked.len(), 1);
        drop(hold);
        while !questions.0.state().asked.is_empty() {
            thread::yield_now();
        }
        assert_eq!(pids(&questions.ask([prompt(2, 0)], LONG)), [2]);
    }

    #[test]
    fn one_user_cannot_use_up_the_threads() {
        let questions = Questions::new();
        let (_holds, hostile): (Vec<_>, Vec<_>) = (1..=20).map(|pid| blocked(pid, 1000)).unzip();
        let answers = questions.ask(hostile.into_iter().chain([prompt(21, 1000), prompt(22, 0)]), LONG);
        assert_eq!(pids(&answers), [22]);
        assert_eq!(questions.0.state().threads, MAX_STUCK_OF_USER);
    }

    #[test]
    fn many_users_stop_the_questions_and_not_the_asker() {
        let questions = Questions::new();
        let (_holds, hostile): (Vec<_>, Vec<_>) = (1..=20).map(|pid| blocked(pid, pid)).unzip();
        assert!(questions.ask(hostile, LONG).is_empty());
        assert_eq!(questions.0.state().threads, MAX_STUCK);
        assert!(questions.ask([prompt(30, 0)], LONG).is_empty());
    }

    #[test]
    fn the_asker_waits_no_longer_than_it_said() {
        let questions = Questions::new();
        let (_hold, question) = blocked(1, 0);
        assert!(questions.ask([question, prompt(2, 0)], Duration::ZERO).is_empty());
    }
}
