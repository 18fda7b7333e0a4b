//! The current screen and the position in it.

use super::order::Filter;
use super::snapshot::{ProcessKey, SiteKey};
use super::tree::Path;
use crate::profile::Profile;

/// A screen.
#[derive(Debug)]
pub(super) enum Screen {
    /// All processes.
    Processes(List<ProcessKey>),
    /// Call sites, of one process or of all.
    Sites { of: Option<ProcessKey>, list: List<SiteKey> },
    /// A call site: its verdict, and one of its stacks.
    Site { key: SiteKey, stack: usize, scroll: usize },
    /// The tree of call paths below `zoom`.
    Tree { of: Scope, zoom: Path, selected: Path },
    /// Resident memory of a process by use.
    Memory { of: ProcessKey, scroll: usize },
}

/// The part of a snapshot that a screen shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    Everything,
    Process(ProcessKey),
    Site(SiteKey),
}

/// Position in a list.
#[derive(Debug)]
pub(super) struct List<K> {
    /// The selected row; `None` selects the first row, whichever that is.
    pub(super) selected: Option<K>,
    /// Index of the selected row.
    pub(super) index: usize,
    /// Index of the first visible row.
    pub(super) offset: usize,
    pub(super) filter: Filter,
}

impl<K> Default for List<K> {
    fn default() -> Self {
        Self { selected: None, index: 0, offset: 0, filter: Filter::default() }
    }
}

impl<K> List<K> {
    /// Scrolls to the selected row, which is at index `found` of a list with `rows` rows, of which `page` are visible.
    pub(super) fn scroll_to_selected(&mut self, found: Option<usize>, rows: usize, page: usize) {
        self.index = match (&self.selected, found) {
            (None, _) => 0,
            (Some(_), Some(index)) => index,
            // The selected row is gone: select the one now in its place.
            (Some(_), None) => self.index.min(rows.saturating_sub(1)),
        };
        let page = page.max(1);
        let last = rows.saturating_sub(page);
        let first = (self.index + 1).saturating_sub(page);
        self.offset = self.offset.clamp(first, self.index.max(first)).min(last.max(first));
    }
}

impl Screen {
    /// Returns true if the screen shows any of this process.
    pub(super) fn shows(&self, profile: &Profile) -> bool {
        self.scope().has(profile)
    }

    /// The part of a snapshot that the screen shows.
    pub(super) const fn scope(&self) -> Scope {
        match self {
            Self::Processes(_) | Self::Sites { of: None, .. } => Scope::Everything,
            Self::Sites { of: Some(process), .. } => Scope::Process(*process),
            Self::Site { key, .. } => Scope::Site(*key),
            Self::Tree { of, .. } => *of,
            Self::Memory { of, .. } => Scope::Process(*of),
        }
    }

    /// Filter of a list.
    pub(super) const fn filter(&self) -> Option<&Filter> {
        match self {
            Self::Processes(list) => Some(&list.filter),
            Self::Sites { list, .. } => Some(&list.filter),
            Self::Site { .. } | Self::Tree { .. } | Self::Memory { .. } => None,
        }
    }

    pub(super) const fn filter_mut(&mut self) -> Option<&mut Filter> {
        match self {
            Self::Processes(list) => Some(&mut list.filter),
            Self::Sites { list, .. } => Some(&mut list.filter),
            Self::Site { .. } | Self::Tree { .. } | Self::Memory { .. } => None,
        }
    }

    /// Indexes of a list's selected row and first visible row.
    pub(super) const fn place(&self) -> (usize, usize) {
        match self {
            Self::Processes(list) => (list.index, list.offset),
            Self::Sites { list, .. } => (list.index, list.offset),
            Self::Site { .. } | Self::Tree { .. } | Self::Memory { .. } => (0, 0),
        }
    }
}

impl Scope {
    /// Returns true if the scope includes any of this process.
    pub(super) fn has(self, profile: &Profile) -> bool {
        let key = ProcessKey::of(&profile.process);
        match self {
            Self::Everything => true,
            Self::Process(process) => process == key,
            Self::Site(site) => site.process == key,
        }
    }
}
