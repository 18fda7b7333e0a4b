//! Assigns programs to sites, and groups sites that are attached together.

use std::path::PathBuf;

use super::super::{Programs, Target};
use super::NOTHING;
use crate::allocators::{ProbeSite, Role};

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
    const fn of(role: Role) -> Self {
        match role {
            Role::Allocate
            | Role::Given
            | Role::Noted
            | Role::AllocateOrThrow
            | Role::Exit
            | Role::UnseenAllocation => Self::Allocations,
            Role::Resize | Role::ResizeInPlace | Role::Free | Role::UnseenFree => Self::Frees,
        }
    }
}

impl Programs {
    /// Entry and return programs of a role.
    const fn of(self, role: Role) -> (&'static str, Option<&'static str>) {
        match (self, role) {
            (Self::Accounting, Role::Allocate) => ("allocate_enter", Some("allocate_return")),
            (Self::Accounting, Role::Resize) => ("resize_enter", Some("allocate_return")),
            (Self::Accounting, Role::Free) => ("free_enter", None),
            (Self::Accounting, Role::UnseenAllocation) => ("unseen_allocate_enter", None),
            (Self::Accounting, Role::UnseenFree) => ("unseen_free_enter", None),
            (Self::Accounting, Role::ResizeInPlace) => ("resize_in_place_enter", Some("allocate_return")),
            (Self::Accounting, Role::Given) => ("block_given", None),
            (Self::Accounting, Role::AllocateOrThrow | Role::Noted) => ("noted_enter", None),
            (Self::Accounting, Role::Exit) => ("noted_exit", None),
            (Self::Stacks, Role::Allocate) => ("stack_enter", Some("bare_return")),
            (Self::KernelStacks, Role::Allocate) => ("kernel_stack_enter", Some("bare_return")),
            (Self::Steps(_), Role::Given) => ("step_given", None),
            (Self::Counting, Role::Free | Role::UnseenFree) => ("bare_free", None),
            (Self::Counting, Role::Given) => ("bare_given", None),
            (Self::Counting, Role::Noted | Role::AllocateOrThrow) => ("bare_noted", None),
            (Self::Counting, Role::Exit) => ("bare_exit", None),
            (Self::Counting, _) => (NOTHING, None),
            (_, role) if role.probes_return() => (NOTHING, Some("bare_return")),
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
            Self::Bare => &[NOTHING, "bare_return"],
            Self::Counting => &[NOTHING, "bare_return", "bare_given", "bare_noted", "bare_exit", "bare_free"],
            Self::Stacks => &["stack_enter", NOTHING, "bare_return"],
            Self::Steps(_) => &["step_given", NOTHING, "bare_return"],
            Self::KernelStacks => &["kernel_stack_enter", NOTHING, "bare_return"],
        }
    }

    /// Groups sites that can be attached together, in order of attachment: returns before entries, and frees before allocations.
    pub(super) fn group(self, targets: &[Target]) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        let mut add = |program, at_return, Target { file, site }: &Target| {
            let part = Part::of(site.role);
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
            if let (_, Some(leave)) = self.of(target.site.role) {
                add(leave, true, target);
            }
        }
        let mut entries: Vec<_> = targets.iter().collect();
        entries.sort_by_key(|target| order(target.site.role));
        for target in entries {
            add(self.of(target.site.role).0, false, target);
        }
        groups
    }
}

/// Position of a role in the order of attachment. The functions of a program that runs get their probes one after the other: a
/// block must not be recorded before its free can be seen.
const fn order(role: Role) -> u8 {
    match role {
        Role::Free | Role::UnseenFree => 0,
        Role::Resize | Role::ResizeInPlace => 1,
        Role::Allocate
        | Role::Given
        | Role::Noted
        | Role::AllocateOrThrow
        | Role::Exit
        | Role::UnseenAllocation => 2,
    }
}
