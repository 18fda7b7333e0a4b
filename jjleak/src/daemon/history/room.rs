//! What goes so that there is room: what is too old now and then, and the oldest before anything is written that would be too much.

use std::collections::BTreeMap;
use std::fs;

use jiff::Timestamp;

use super::retention::expired;
use super::{Bounds, Error, FEW_DEAD, Folder, History, Id, Instant, Line, MAX_DEAD, Sealed};
use crate::store;

/// The line of the index that a profile takes once more when it is removed, at most.
const REMOVAL: u64 = 64;

impl History {
    /// Removes what is too old, and the oldest of what is too much; how many. From now on, there is never more than that.
    pub fn tidy_up(&mut self, now: Instant, bounds: Bounds) -> usize {
        self.most = bounds.bytes;
        let newest = self.sizes().last_key_value().map(|(id, _)| id.time());
        let oldest = now.wall.saturating_sub(bounds.age).unwrap_or(Timestamp::MIN);
        let oldest = if self.clock.is_believed(now, newest, oldest) { oldest } else { Timestamp::MIN };
        self.remove_beyond(oldest)
    }

    /// Removes the oldest so that there is room for this one, and promises it the room until it is [entered](Self::enter): where
    /// its files are to be written. Writing waits for the disk, and nobody else needs to.
    pub fn make_room(&mut self, sealed: &Sealed<'_>) -> Result<Folder, Error> {
        let needed = room(sealed);
        self.give_up_aside(needed);
        if self.index_bytes() + self.promised + needed > self.most {
            // It may have lines that name nothing any more.
            self.compact();
        }
        let most = self.most.saturating_sub(self.index_bytes() + self.promised);
        if needed > most {
            return self.note(Err(Error::TooLarge { bytes: needed, most }));
        }
        self.promised += needed;
        self.remove_beyond(Timestamp::MIN);
        Ok(self.folder.clone())
    }

    /// What was promised to it is its own now, or is not needed.
    pub(super) fn release(&mut self, sealed: &Sealed<'_>) {
        self.promised = self.promised.saturating_sub(room(sealed));
    }

    /// Removes what is older, and the oldest of what is too much.
    fn remove_beyond(&mut self, oldest: Timestamp) -> usize {
        self.give_up_aside(0);
        let left = self.most.saturating_sub(self.index_bytes() + self.promised);
        let ids = expired(&self.sizes(), oldest, left);
        let mut lines = Vec::new();
        for id in &ids {
            self.folder.remove(id);
            self.unread.remove(id);
            if self.entries.remove(id).is_some() {
                self.dead += 2;
                lines.push(Line::Removed(id.clone()));
            }
        }
        // On a full disk the files are gone all the same, and the next start finds out.
        let _ = self.journal.add(&lines);
        if self.dead > MAX_DEAD.min(self.entries.len() + FEW_DEAD) {
            self.compact();
        }
        ids.len()
    }

    /// An old index is worth less than any profile: it goes if there would be too much with so many bytes more.
    fn give_up_aside(&mut self, more: u64) {
        if self.bytes().saturating_add(self.promised + more) > self.most
            && let Some((path, _)) = self.aside.take()
        {
            // If it stays, the next start counts it again.
            let _ = fs::remove_file(path);
        }
    }

    /// Bytes under each name, the oldest first: what is removed takes another line of the index.
    fn sizes(&self) -> BTreeMap<Id, u64> {
        let known = self.entries.values().map(|entry| (entry.id.clone(), entry.bytes() + REMOVAL));
        known.chain(self.unread.clone()).collect()
    }
}

/// What a profile takes, with its lines in the index.
fn room(sealed: &Sealed<'_>) -> u64 {
    let Sealed { entry, .. } = sealed;
    // What cannot be written as a line takes none.
    let line = store::line_bytes(&Line::Kept(Box::new(entry.clone()))).unwrap_or_default();
    entry.bytes() + line + REMOVAL
}
