//! Evicts stacks without live blocks from the kernel side's table before it fills up.
//!
//! The steps are those of `jjleak_common::stack`: the rows are hidden, programs that may still use them end, and those without
//! live blocks are the user side's. `choice` decides when, and which.

mod choice;

use std::collections::BTreeSet;
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

use jjleak_common::names;
use jjleak_common::process::ImageId;
use jjleak_common::stack::{EVICTED, StackStatus};

use super::stacks::UsedRow;
use super::{Collector, freed, live, spill, stacks, usage};
use crate::attach::{Attachment, Error};
use crate::snapshot::{Allocated, RawStack};
use choice::{Candidate, State};

pub(super) use choice::EvictionSchedule;

/// A row whose stack can leave the table. No call finds it, and its sums are final.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvictedRow {
    /// Index of the row.
    pub row: u32,
    /// Image of the stack.
    pub image: ImageId,
    /// Identity of the stack.
    pub id: u64,
    /// What was allocated from it, in the kernel side's unit.
    pub allocated: Allocated,
    /// The hash that the row had.
    hash: u64,
}

/// Returns true if the stack in a row has live blocks, or may have: the table can have doubled since they were read.
fn has_blocks(blocks: &[bool], row: u32) -> bool {
    blocks.get(row as usize).copied().unwrap_or(true)
}

impl Collector {
    /// Returns true if some stacks should be evicted now.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        self.schedule.is_due(self.used(), self.rows(), Instant::now())
    }

    /// Hides stacks without live blocks, and returns their rows once nothing uses them any more: [`Self::empty`] or
    /// [`Self::put_back`] must be called with them. If stacks that have to stay take too much of the table, it is allowed to grow
    /// instead. `is_busy` returns true for rows that the user side has not finished with.
    pub fn evict(
        &mut self,
        attachment: &Attachment,
        is_busy: impl Fn(u32, ImageId, &RawStack) -> bool,
    ) -> Result<Vec<EvictedRow>, Error> {
        self.receive_frames();
        self.live.hold()?;
        let new = self.frames.all_new();
        let is_busy = |row: u32, image, stack: &RawStack| new.contains(&row) || is_busy(row, image, stack);
        let now = Instant::now();
        let (used, rows) = (self.used(), self.rows());
        let blocks = self.rows_with_live_blocks(attachment)?;
        let known: Vec<_> = stacks::used_rows(&self.stacks).filter(|row| row.hash != EVICTED).collect();
        let candidates = known.iter().map(|row| Candidate {
            row: row.row,
            hash: row.hash,
            allocated: row.allocated.objects,
            state: self.state(row, &blocks, &is_busy),
        });
        let candidates = candidates.collect::<Vec<_>>();
        let chosen = self.schedule.choose(&candidates, used, rows, now);
        if choice::is_too_small(&candidates, rows) && self.stacks.want_more() {
            tracing::debug!(used, rows, "the stack table may double");
            return Ok(Vec::new());
        }
        let chosen: Vec<_> = known.into_iter().filter(|row| chosen.contains(&row.row)).collect();
        if chosen.is_empty() {
            return Ok(Vec::new());
        }
        for row in &chosen {
            stacks::set_hash(&self.stacks, row.row, EVICTED);
        }
        fence(Ordering::SeqCst);
        let blocks = attachment.await_programs().and_then(|waited| {
            if waited { self.rows_with_live_blocks(attachment).map(Some) } else { Ok(None) }
        });
        self.receive_frames();
        for row in &chosen {
            self.frames.keep_only(row.row, row.hash);
        }
        let is_free = |row: &UsedRow| matches!(&blocks, Ok(Some(blocks)) if !has_blocks(blocks, row.row));
        let (free, kept): (Vec<_>, Vec<_>) = chosen.into_iter().partition(is_free);
        for row in &kept {
            stacks::set_hash(&self.stacks, row.row, row.hash);
        }
        self.schedule.note(used, free.len(), kept.len());
        blocks?;
        let evicted = |UsedRow { row, hash, image, .. }| EvictedRow {
            row,
            image,
            id: self.finished.get(&row).copied().unwrap_or(hash),
            allocated: stacks::allocated_in(&self.stacks, row),
            hash,
        };
        Ok(free.into_iter().map(evicted).collect())
    }

    /// Frees rows for other stacks.
    pub fn empty(&mut self, evicted: &[EvictedRow]) -> BTreeSet<u32> {
        let rows: BTreeSet<_> = evicted.iter().map(|evicted| evicted.row).collect();
        self.frames.forget(&rows);
        self.finished.retain(|row, _| !rows.contains(row));
        for evicted in evicted {
            stacks::free(&self.stacks, evicted.row);
            usage::add_emptied(&self.usage, evicted.image.slot());
        }
        rows
    }

    /// Lets a stack have its row back.
    pub fn put_back(&self, evicted: &EvictedRow) {
        stacks::set_hash(&self.stacks, evicted.row, evicted.hash);
    }

    /// State of a row on the user side.
    fn state(
        &self,
        row: &UsedRow,
        blocks: &[bool],
        is_busy: &impl Fn(u32, ImageId, &RawStack) -> bool,
    ) -> State {
        let is_counted = row.allocated.objects > 0;
        // Windows keep sums by row: none may be another stack's.
        if self.windows.is_some() || has_blocks(blocks, row.row) || !is_counted && self.keeps_uncounted {
            return State::Needed;
        }
        let is_settled = |stack: &RawStack| {
            let is_unfinished =
                stack.status == StackStatus::NoMapping || self.finished.contains_key(&row.row);
            !is_unfinished && !is_busy(row.row, row.image, stack)
        };
        // Without a count, the first call is in progress; without frames, they are on their way.
        let stack = self.stack(row.row).filter(|_| is_counted && self.frames.has(row.row, row.hash));
        if stack.is_some_and(is_settled) { State::Free } else { State::Unsettled }
    }

    /// For each row, if its stack has live blocks.
    fn rows_with_live_blocks(&self, attachment: &Attachment) -> Result<Vec<bool>, Error> {
        let mut has_blocks = vec![false; self.stacks.len() as usize];
        if self.combined {
            for (row, has_blocks) in (0..).zip(&mut has_blocks) {
                *has_blocks = stacks::has_live(&self.totals, row);
            }
            return Ok(has_blocks);
        }
        let mut note = |row: u32| {
            if let Some(has_blocks) = has_blocks.get_mut(row as usize) {
                *has_blocks = true;
            }
        };
        live::stacks(&self.live, &mut note);
        if freed::has_spilled(&self.freed) {
            let spilled = spill::read(attachment.map(names::SPILL)?)?;
            for (_, record) in &spilled {
                note(live::unmarked(*record).stack);
            }
        }
        Ok(has_blocks)
    }

    fn used(&self) -> u64 {
        usage::used(&self.usage)
    }

    fn rows(&self) -> u64 {
        self.stacks.wanted_rows().into()
    }
}
