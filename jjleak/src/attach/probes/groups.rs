//! Assigns programs to sites, and groups sites that are attached together.

use std::path::PathBuf;

use super::super::{Programs, Target};
use super::NOTHING;
use crate::allocators::{ProbePoint, ProbeSite, Role};

/// Sites of a file with the same program.
pub(super) struct Group {
    pub(super) program: &'static str,
    pub(super) at_return: bool,
    pub(super) part: Part,
    pub(super) file: PathBuf,
    pub(super) sites: Vec<ProbeSite>,
}

/// Probes that are detached and attached together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Functions that return new blocks.
    Allocations,
    /// Functions that free or resize blocks.
    Frees,
}

impl Part {
    const fn of(point: ProbePoint) -> Self {
        match point {
            ProbePoint::Entry(Role::Resize | Role::ResizeInPlace | Role::Free | Role::UnseenFree)
            | ProbePoint::SampleFreed => Self::Frees,
            ProbePoint::Entry(_)
            | ProbePoint::Block
            | ProbePoint::Size
            | ProbePoint::Exit
            | ProbePoint::Sampled => Self::Allocations,
        }
    }
}

impl Programs {
    /// Program at a point, and at the return if that matters.
    const fn of(self, point: ProbePoint) -> (&'static str, Option<&'static str>) {
        use ProbePoint::{Block, Entry, Exit, SampleFreed, Sampled, Size};
        match (self, point) {
            (Self::Accounting, Entry(Role::Allocate)) => ("allocate_enter", Some("allocate_return")),
            (Self::Accounting, Entry(Role::Resize)) => ("resize_enter", Some("allocate_return")),
            (Self::Accounting, Entry(Role::Free)) => ("free_enter", None),
            (Self::Accounting, Entry(Role::UnseenAllocation)) => ("unseen_allocate_enter", None),
            (Self::Accounting, Entry(Role::UnseenFree)) => ("unseen_free_enter", None),
            (Self::Accounting, Entry(Role::ResizeInPlace)) => {
                ("resize_in_place_enter", Some("allocate_return"))
            }
            (Self::Accounting, Block) => ("block_given", None),
            (Self::Accounting, Entry(Role::AllocateOrThrow) | Size) => ("noted_enter", None),
            (Self::Accounting, Exit) => ("noted_exit", None),
            (Self::JavaHeap, Entry(Role::JavaObject)) => ("java_object", None),
            (Self::Samples, Sampled) => ("sample_allocated", None),
            (Self::Samples, SampleFreed) => ("sample_freed", None),
            #[cfg(feature = "measuring")]
            (Self::Stacks, Entry(Role::Allocate)) => ("stack_enter", Some("bare_return")),
            #[cfg(feature = "measuring")]
            (Self::KernelStacks, Entry(Role::Allocate)) => ("kernel_stack_enter", Some("bare_return")),
            #[cfg(feature = "measuring")]
            (Self::Steps(_), Block) => ("step_given", None),
            (Self::Counting, Entry(Role::Free | Role::UnseenFree)) => ("bare_free", None),
            (Self::Counting, Block) => ("bare_given", None),
            (Self::Counting, Size | Entry(Role::AllocateOrThrow)) => ("bare_noted", None),
            (Self::Counting, Exit) => ("bare_exit", None),
            (Self::Counting, _) => (NOTHING, None),
            (_, point) if point.probes_return() => (NOTHING, Some("bare_return")),
            (_, _) => (NOTHING, None),
        }
    }

    /// Programs of this mode.
    pub(super) const fn names(self) -> &'static [&'static str] {
        match self {
            Self::Accounting => &[
                "allocate_enter",
                "resize_enter",
                "allocate_return",
                "block_given",
                "free_enter",
                "unseen_allocate_enter",
                "resize_in_place_enter",
                "noted_enter",
                "noted_exit",
                "unseen_free_enter",
                NOTHING,
                "bare_return",
            ],
            Self::JavaHeap => &["java_object", NOTHING, "bare_return"],
            Self::Samples => &["sample_allocated", "sample_freed", NOTHING, "bare_return"],
            Self::Bare => &[NOTHING, "bare_return"],
            Self::Counting => &[NOTHING, "bare_return", "bare_given", "bare_noted", "bare_exit", "bare_free"],
            #[cfg(feature = "measuring")]
            Self::Stacks => &["stack_enter", NOTHING, "bare_return"],
            #[cfg(feature = "measuring")]
            Self::Steps(_) => &["step_given", NOTHING, "bare_return"],
            #[cfg(feature = "measuring")]
            Self::KernelStacks => &["kernel_stack_enter", NOTHING, "bare_return"],
        }
    }

    /// Groups sites that can be attached together, in order of attachment: returns before entries, and frees before allocations.
    pub(super) fn group(self, targets: &[Target]) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        let mut add = |program, at_return, Target { file, site }: &Target| {
            let part = Part::of(site.point);
            let is_of =
                |group: &&mut Group| group.program == program && group.part == part && group.file == *file;
            match groups.iter_mut().find(is_of) {
                Some(group) => group.sites.push(site.clone()),
                None => {
                    groups.push(Group {
                        program,
                        at_return,
                        part,
                        file: file.clone(),
                        sites: vec![site.clone()],
                    });
                }
            }
        };
        for target in targets {
            if let (_, Some(leave)) = self.of(target.site.point) {
                add(leave, true, target);
            }
        }
        let mut entries: Vec<_> = targets.iter().collect();
        entries.sort_by_key(|target| order(target.site.point));
        for target in entries {
            add(self.of(target.site.point).0, false, target);
        }
        groups
    }
}

/// Position of a point in the order of attachment. The functions of a program that runs get their probes one after the other: a
/// block must not be recorded before its free can be seen.
const fn order(point: ProbePoint) -> u8 {
    match point {
        ProbePoint::Entry(Role::Free | Role::UnseenFree) | ProbePoint::SampleFreed => 0,
        ProbePoint::Entry(Role::Resize | Role::ResizeInPlace) => 1,
        ProbePoint::Entry(
            Role::Allocate | Role::AllocateOrThrow | Role::UnseenAllocation | Role::JavaObject,
        )
        | ProbePoint::Block
        | ProbePoint::Size
        | ProbePoint::Sampled
        | ProbePoint::Exit => 2,
    }
}
