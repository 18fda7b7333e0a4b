//! Space for profiles: removes expired ones at intervals, and the oldest ones before a write would exceed the limit.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;

use super::retention::expired;
use super::{Bounds, Error, FEW_STALE, Folder, History, Id, Instant, Line, MAX_STALE, Sealed};
use crate::store;

/// Space reserved for a profile that is being written, until dropped.
#[derive(Debug)]
pub struct Reservation {
    folder: Folder,
    bytes: u64,
    reserved: Arc<AtomicU64>,
}

impl Reservation {
    /// Folder for the profile's files.
    #[must_use]
    pub const fn folder(&self) -> &Folder {
        &self.folder
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.reserved.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

/// Maximum size of the line that removing a profile adds to the index.
const REMOVAL: u64 = 64;

impl History {
    /// Removes expired profiles and sets the size limit; returns their number.
    pub fn apply_retention(&mut self, now: Instant, bounds: Bounds) -> usize {
        self.most = bounds.bytes;
        let newest = self.sizes().last_key_value().map(|(id, _)| id.time());
        let oldest = now.wall.saturating_sub(bounds.age).unwrap_or(Timestamp::MIN);
        let oldest = if self.clock.is_trusted(now, newest, oldest) { oldest } else { Timestamp::MIN };
        self.remove_expired(oldest)
    }

    /// Removes the oldest profiles to make space for this one, and reserves it until [`Self::commit`]. The profile is then
    /// written without holding the history, because that blocks on the disk.
    pub fn reserve(&mut self, sealed: &Sealed<'_>) -> Result<Reservation, Error> {
        let bytes = size_with_lines(sealed);
        // Reserved space is unavailable. Everything else can be removed, so nothing is removed in vain.
        let most = self.most.saturating_sub(self.reserved());
        if bytes > most {
            return self.record_outcome(Err(Error::TooLarge { bytes, most }));
        }
        self.reserved.fetch_add(bytes, Ordering::SeqCst);
        let reservation =
            Reservation { folder: self.folder.clone(), bytes, reserved: Arc::clone(&self.reserved) };
        self.remove_moved_index();
        if self.is_over_limit() {
            // Stale lines of the index may be enough.
            self.compact();
        }
        self.remove_expired(Timestamp::MIN);
        self.shorten_index();
        if self.is_over_limit() {
            self.compact();
        }
        if self.is_over_limit() {
            // Some file cannot be removed.
            drop(reservation);
            let most = self.most.saturating_sub(self.bytes() + self.reserved());
            return self.record_outcome(Err(Error::TooLarge { bytes, most }));
        }
        Ok(reservation)
    }

    /// Bytes reserved for profiles that are being written.
    pub(super) fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::SeqCst)
    }

    fn is_over_limit(&self) -> bool {
        self.bytes().saturating_add(self.reserved()) > self.most
    }

    /// Removes profiles older than `oldest`, and the oldest ones beyond the size limit.
    fn remove_expired(&mut self, oldest: Timestamp) -> usize {
        self.remove_moved_index();
        let left = self.most.saturating_sub(self.index_bytes() + self.reserved());
        let ids = expired(&self.sizes(), oldest, left);
        let mut lines = Vec::new();
        for id in &ids {
            self.folder.remove(id);
            self.unreadable.remove(id);
            // Files that could not be removed still take space.
            let bytes = self.file_bytes(id);
            if bytes > 0 {
                self.unreadable.insert(id.clone(), bytes);
            }
            if self.entries.remove(id).is_some() {
                self.stale_lines += 2;
                lines.push(Line::Removed(id.clone()));
            }
        }
        // If the disk is full, the files are gone nevertheless, and the next start drops their entries.
        let _ = self.journal.append(&lines);
        if self.stale_lines > MAX_STALE.min(self.entries.len() + FEW_STALE) {
            self.compact();
        }
        ids.len()
    }

    /// Removes the oldest profiles if the index becomes too long for another start: an eighth at a time, because each time rewrites
    /// it.
    fn shorten_index(&mut self) {
        while self.journal.bytes() > self.most_index && !self.entries.is_empty() {
            self.compact();
            if self.journal.bytes() <= self.most_index {
                return;
            }
            let oldest: Vec<_> = self.entries.keys().take(self.entries.len() / 8 + 1).cloned().collect();
            for id in oldest {
                self.folder.remove(&id);
                self.entries.remove(&id);
                self.stale_lines += 2;
            }
        }
    }

    /// Removes the old unreadable index if space is short: it is worth less than any profile.
    fn remove_moved_index(&mut self) {
        if self.is_over_limit()
            && let Some((path, bytes)) = self.moved_index.take()
            && fs::remove_file(&path).is_err()
            && path.exists()
        {
            self.moved_index = Some((path, bytes));
        }
    }

    /// Size by ID, oldest first, including the line of the index for its removal.
    fn sizes(&self) -> BTreeMap<Id, u64> {
        let known = self.entries.values().map(|entry| (entry.id.clone(), entry.bytes() + REMOVAL));
        known.chain(self.unreadable.clone()).collect()
    }
}

/// Size of a profile with its lines in the index.
fn size_with_lines(sealed: &Sealed<'_>) -> u64 {
    let Sealed { entry, .. } = sealed;
    // An entry that cannot be serialized is reported when it is written.
    let line = store::line_bytes(&Line::Stored(Box::new(entry.clone()))).unwrap_or_default();
    entry.bytes() + line + REMOVAL
}
