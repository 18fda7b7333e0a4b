//! Details of live blocks, which most stacks of a large profile do not have.

use std::cmp::Reverse;
use std::ops::{Deref, DerefMut};

use smallvec::SmallVec;

use super::{Ages, Block, Cohort};

/// Details of a stack's live memory besides its totals. Takes 8 bytes if there are none.
#[derive(Debug, Clone, Default)]
pub struct Details(Option<Box<BlockDetails>>);

/// Details of live memory.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockDetails {
    /// Live totals by time of allocation, without empty cohorts; empty if ages are unknown.
    pub cohorts: SmallVec<[Cohort; 1]>,
    /// Ages of the live blocks; `None` without live blocks, or if ages are unknown.
    pub ages: Option<Ages>,
    /// The largest live blocks, if the [`super::Coverage`] asks for them.
    pub blocks: Vec<Block>,
    /// Change of live bytes since the previous report; see [`crate::analyze::Growth`].
    pub growth: i64,
}

static NOTHING: BlockDetails =
    BlockDetails { cohorts: SmallVec::new_const(), ages: None, blocks: Vec::new(), growth: 0 };

impl From<BlockDetails> for Details {
    fn from(known: BlockDetails) -> Self {
        Self((known != NOTHING).then(|| Box::new(known)))
    }
}

impl Details {
    /// Adds those of other blocks; keeps the largest blocks.
    pub(super) fn add(&mut self, more: &BlockDetails, most_blocks: usize) {
        if *more == NOTHING {
            return;
        }
        let sum = &mut **self;
        sum.ages = match (sum.ages, more.ages) {
            (Some(one), Some(other)) => {
                Some(Ages { oldest: one.oldest.max(other.oldest), newest: one.newest.min(other.newest) })
            }
            (one, other) => one.or(other),
        };
        for cohort in &more.cohorts {
            match sum.cohorts.binary_search_by_key(&cohort.interval, |known| known.interval) {
                Ok(place) => {
                    let Cohort { live, .. } = &mut sum.cohorts[place];
                    *live = [*live, cohort.live].into_iter().sum();
                }
                Err(place) => sum.cohorts.insert(place, *cohort),
            }
        }
        sum.blocks.extend_from_slice(&more.blocks);
        sum.blocks.sort_by_key(|block| (Reverse(block.size), block.address));
        sum.blocks.truncate(most_blocks);
        sum.growth = sum.growth.saturating_add(more.growth);
    }

    /// Sets the change of live bytes.
    pub fn set_growth(&mut self, growth: i64) {
        if growth != self.growth {
            self.growth = growth;
        }
    }
}

impl Deref for Details {
    type Target = BlockDetails;

    fn deref(&self) -> &BlockDetails {
        self.0.as_deref().unwrap_or(&NOTHING)
    }
}

impl DerefMut for Details {
    fn deref_mut(&mut self) -> &mut BlockDetails {
        self.0.get_or_insert_with(|| Box::new(NOTHING.clone()))
    }
}

impl PartialEq for Details {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Default for BlockDetails {
    fn default() -> Self {
        NOTHING.clone()
    }
}
