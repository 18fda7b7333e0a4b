//! Threads that have allocated.

use std::collections::HashMap;

use jjleak_common::process::ImageId;

use crate::snapshot::Thread;

/// Threads by image.
#[derive(Debug, Default)]
pub(super) struct Threads(HashMap<ImageId, OfImage>);

#[derive(Debug, Default)]
struct OfImage {
    /// By [identity](jjleak_common::stack::thread_identity).
    threads: HashMap<u64, Thread>,
    /// Number of threads seen with an ID.
    seen: HashMap<u32, u32>,
    /// Identities of threads that may run: the last one with each ID.
    running: HashMap<u32, u64>,
}

impl Threads {
    /// Registers a thread, with its name at the time, when one of its stacks is first seen.
    pub(super) fn see(&mut self, image: ImageId, identity: u64, number: u32, name: String) {
        let OfImage { threads, seen, running } = self.0.entry(image).or_default();
        if let Some(known) = threads.get_mut(&identity) {
            known.name = name;
            return;
        }
        let nth = seen.entry(number).or_default();
        *nth += 1;
        threads.insert(identity, Thread { number, name, nth: *nth });
        running.insert(number, identity);
    }

    pub(super) fn get(&self, image: ImageId, identity: u64) -> Option<&Thread> {
        self.0.get(&image)?.threads.get(&identity)
    }

    /// Updates names: `name` returns the current name of the thread with an ID, or `None` if it has ended.
    /// Only the last thread with each ID is renamed.
    pub(super) fn rename(&mut self, image: ImageId, name: impl Fn(u32) -> Option<String>) {
        let Some(OfImage { threads, running, .. }) = self.0.get_mut(&image) else { return };
        running.retain(|number, identity| {
            let name = name(*number);
            if let (Some(name), Some(thread)) = (&name, threads.get_mut(identity)) {
                thread.name.clone_from(name);
            }
            name.is_some()
        });
    }

    pub(super) fn forget(&mut self, is_gone: impl Fn(ImageId) -> bool) {
        self.0.retain(|image, _| !is_gone(*image));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: ImageId = ImageId(1);

    fn names(threads: &Threads) -> Vec<(String, u32)> {
        let mut names: Vec<_> =
            threads.0[&IMAGE].threads.values().map(|thread| (thread.name.clone(), thread.nth)).collect();
        names.sort();
        names
    }

    #[test]
    fn a_thread_has_the_name_that_it_had_last_and_keeps_it() {
        let mut threads = Threads::default();
        threads.see(IMAGE, 7, 42, "main".to_owned());
        threads.see(IMAGE, 7, 42, "worker".to_owned());
        assert_eq!(names(&threads), [("worker".to_owned(), 1)]);
        threads.rename(IMAGE, |number| (number == 42).then(|| "poller".to_owned()));
        threads.rename(IMAGE, |_| None);
        assert_eq!(names(&threads), [("poller".to_owned(), 1)]);
    }

    #[test]
    fn threads_that_had_a_number_one_after_the_other_are_not_mistaken() {
        let mut threads = Threads::default();
        threads.see(IMAGE, 7, 42, "first".to_owned());
        threads.see(IMAGE, 8, 42, "second".to_owned());
        threads.rename(IMAGE, |_| Some("now".to_owned()));
        assert_eq!(names(&threads), [("first".to_owned(), 1), ("now".to_owned(), 2)]);
        threads.forget(|image| image == IMAGE);
        assert_eq!(threads.get(IMAGE, 8), None);
    }
}
