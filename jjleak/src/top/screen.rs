//! What is looked at, and where in it.

use super::books::{ProcessKey, SiteKey};
use super::order::Filter;
use super::tree::Path;
use crate::profile::Profile;

/// What is looked at.
#[derive(Debug)]
pub(super) enum Screen {
    /// All processes.
    Processes(List<ProcessKey>),
    /// Call sites, of one process or of all.
    Sites { of: Option<ProcessKey>, list: List<SiteKey> },
    /// A call site: the verdict, and one of its stacks.
    Site { key: SiteKey, stack: usize, scroll: usize },
    /// The tree of call paths below `zoom`.
    Tree { of: Scope, zoom: Path, chosen: Path },
}

/// A part of what is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    Everything,
    Process(ProcessKey),
    Site(SiteKey),
}

/// A place in a list.
#[derive(Debug)]
pub(super) struct List<K> {
    /// What was chosen; the first, whatever it is, while nothing was.
    pub(super) chosen: Option<K>,
    /// Where that is.
    pub(super) index: usize,
    /// The first row that is in sight.
    pub(super) offset: usize,
    pub(super) filter: Filter,
}

impl<K> Default for List<K> {
    fn default() -> Self {
        Self { chosen: None, index: 0, offset: 0, filter: Filter::default() }
    }
}

impl<K> List<K> {
    /// Keeps what is chosen in sight: it was found here in a list of so many rows, of which a page is shown.
    pub(super) fn settle(&mut self, found: Option<usize>, rows: usize, page: usize) {
        self.index = match (&self.chosen, found) {
            (None, _) => 0,
            (Some(_), Some(index)) => index,
            // What was chosen is gone: what is in its place now is as near as it gets.
            (Some(_), None) => self.index.min(rows.saturating_sub(1)),
        };
        let page = page.max(1);
        let last = rows.saturating_sub(page);
        let first = (self.index + 1).saturating_sub(page);
        self.offset = self.offset.clamp(first, self.index.max(first)).min(last.max(first));
    }
}

impl Screen {
    /// Whether the screen shows something of this process.
    pub(super) fn concerns(&self, profile: &Profile) -> bool {
        self.scope().has(profile)
    }

    /// The part of what is known that the screen shows.
    pub(super) const fn scope(&self) -> Scope {
        match self {
            Self::Processes(_) | Self::Sites { of: None, .. } => Scope::Everything,
            Self::Sites { of: Some(process), .. } => Scope::Process(*process),
            Self::Site { key, .. } => Scope::Site(*key),
            Self::Tree { of, .. } => *of,
        }
    }

    /// The filter of the list that it is.
    pub(super) const fn filter(&self) -> Option<&Filter> {
        match self {
            Self::Processes(list) => Some(&list.filter),
            Self::Sites { list, .. } => Some(&list.filter),
            Self::Site { .. } | Self::Tree { .. } => None,
        }
    }

    pub(super) const fn filter_mut(&mut self) -> Option<&mut Filter> {
        match self {
            Self::Processes(list) => Some(&mut list.filter),
            Self::Sites { list, .. } => Some(&mut list.filter),
            Self::Site { .. } | Self::Tree { .. } => None,
        }
    }

    /// The place in the list that it is: which row is chosen, and which is the first in sight.
    pub(super) const fn place(&self) -> (usize, usize) {
        match self {
            Self::Processes(list) => (list.index, list.offset),
            Self::Sites { list, .. } => (list.index, list.offset),
            Self::Site { .. } | Self::Tree { .. } => (0, 0),
        }
    }
}

impl Scope {
    /// Whether this process has a part in it.
    pub(super) fn has(self, profile: &Profile) -> bool {
        let key = ProcessKey::of(&profile.process);
        match self {
            Self::Everything => true,
            Self::Process(process) => process == key,
            Self::Site(site) => site.process == key,
        }
    }
}
