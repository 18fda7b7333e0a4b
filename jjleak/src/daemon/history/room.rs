//! What goes so that there is room: what is too old now and then, and the oldest before anything is written that would be too much.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;

use super::retention::expired;
use super::{Bounds, Error, FEW_DEAD, Folder, History, Id, Instant, Line, MAX_DEAD, Sealed};
use crate::store;

/// Room that is promised to a profile that is being written, for as long as this lives.
#[derive(Debug)]
pub struct Room {
    folder: Folder,
    bytes: u64,
    promised: Arc<AtomicU64>,
}

impl Room {
    /// Where the profile's files are to be.
    #[must_use]
    pub const fn folder(&self) -> &Folder {
        &self.folder
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.promised.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

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

    /// Removes the oldest so that there is room for this one, and promises it the room until it is [entered](Self::enter).
    /// Writing waits for the disk, and nobody else needs to.
    pub fn make_room(&mut self, sealed: &Sealed<'_>) -> Result<Room, Error> {
        let bytes = room(sealed);
        // What others are promised cannot be had. All else can, and none of it goes in vain.
        let most = self.most.saturating_sub(self.promised());
        if bytes > most {
            return self.note(Err(Error::TooLarge { bytes, most }));
        }
        self.promised.fetch_add(bytes, Ordering::SeqCst);
        let room = Room { folder: self.folder.clone(), bytes, promised: Arc::clone(&self.promised) };
        self.give_up_aside();
        if self.is_too_much() {
            // The index may have lines that name nothing any more.
            self.compact();
        }
        self.remove_beyond(Timestamp::MIN);
        if self.is_too_much() {
            self.compact();
        }
        if self.is_too_much() {
            // Something cannot be removed.
            drop(room);
            let most = self.most.saturating_sub(self.bytes() + self.promised());
            return self.note(Err(Error::TooLarge { bytes, most }));
        }
        Ok(room)
    }

    /// Bytes that are promised to profiles that are being written.
    pub(super) fn promised(&self) -> u64 {
        self.promised.load(Ordering::SeqCst)
    }

    fn is_too_much(&self) -> bool {
        self.bytes().saturating_add(self.promised()) > self.most
    }

    /// Removes what is older, and the oldest of what is too much.
    fn remove_beyond(&mut self, oldest: Timestamp) -> usize {
        self.give_up_aside();
        let left = self.most.saturating_sub(self.index_bytes() + self.promised());
        let ids = expired(&self.sizes(), oldest, left);
        let mut lines = Vec::new();
        for id in &ids {
            self.folder.remove(id);
            self.unread.remove(id);
            // What stays takes its room still.
            let bytes = self.file_bytes(id);
            if bytes > 0 {
                self.unread.insert(id.clone(), bytes);
            }
            if self.entries.remove(id).is_some() {
                self.dead += 2;
                lines.push(Line::Removed(id.clone()));
            }
        }
        // On a full disk the files are gone all the same, and the next start finds out.
        let _ = self.journal.append(&lines);
        if self.dead > MAX_DEAD.min(self.entries.len() + FEW_DEAD) {
            self.compact();
        }
        ids.len()
    }

    /// An old index is worth less than any profile: it goes if there is too much.
    fn give_up_aside(&mut self) {
        if self.is_too_much()
            && let Some((path, bytes)) = self.aside.take()
            && fs::remove_file(&path).is_err()
            && path.exists()
        {
            self.aside = Some((path, bytes));
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
