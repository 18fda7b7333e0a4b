//! The functions of an allocator found in a file, with all their names, before their probe sites are chosen.

use jjleak_common::cookie::Signature;

use super::{
    MissingFunction, MissingReason,
    families::{self, Held},
    named::{NamedAllocator, NamedFunction, Place},
    placement,
    site::{ProbePoint, ProbeSite, Role},
    symbols::{Function, Image},
};

/// A function with all its names, before its probe site is chosen.
pub(super) struct Located<'data> {
    /// Index of its allocator among those found.
    pub(super) allocator: usize,
    pub(super) may_pass_on: bool,
    pub(super) names: Vec<String>,
    pub(super) role: Role,
    pub(super) signature: Signature,
    pub(super) function: Function<'data>,
}

/// Meaning of a function for the accounting.
#[derive(Clone, Copy)]
struct Meaning {
    role: Role,
    signature: Signature,
    may_pass_on: bool,
}

/// Adds the functions of a family to `located`, except those already claimed by another. Returns the functions that cannot be
/// probed.
pub(super) fn locate<'data>(
    image: &Image<'data>,
    held: &Held,
    allocator: usize,
    located: &mut Vec<Located<'data>>,
) -> Vec<MissingFunction> {
    let mut missing = Vec::new();
    for (row, names) in held.functions() {
        let &families::Function { role, signature, may_pass_on, .. } = row;
        let zero_frees = signature.zero_frees || held.is_unknown() && role == Role::Free;
        let meaning = Meaning { role, signature: Signature { zero_frees, ..signature }, may_pass_on };
        if let Err(reason) = locate_names(image, meaning, &names, allocator, located) {
            missing.push(MissingFunction { name: row.names[0].to_owned(), reason });
        }
    }
    missing
}

/// Adds the functions of an allocator named by the user to `located`. Returns the functions that cannot be probed.
pub(super) fn locate_named<'data>(
    image: &Image<'data>,
    user_named: &NamedAllocator,
    allocator: usize,
    located: &mut Vec<Located<'data>>,
) -> Vec<MissingFunction> {
    let mut missing = Vec::new();
    for NamedFunction { place, role, signature } in &user_named.functions {
        let meaning = Meaning { role: *role, signature: *signature, may_pass_on: false };
        let (name, outcome) = match place {
            Place::Names(names) => {
                (names[0].clone(), locate_names(image, meaning, names, allocator, located))
            }
            Place::Address(address) => {
                let name = format!("{address:#x}");
                let function = image.function_at(*address);
                let outcome = function.and_then(|function| add(function, &name, meaning, allocator, located));
                (name, outcome)
            }
        };
        if let Err(reason) = outcome {
            missing.push(MissingFunction { name, reason });
        }
    }
    missing
}

impl Located<'_> {
    /// Returns true for an `operator new` that returns null where others throw.
    pub(super) fn promises_not_to_throw(&self) -> bool {
        self.names.iter().all(|name| name.ends_with("RKSt9nothrow_t"))
    }

    pub(super) fn place(self, sealed: u64) -> ProbeSite {
        let Self { names, role, signature, function, .. } = self;
        let function_length = function.body.bytes().len() as u64;
        let placement = placement::place(function.body, role, signature, sealed);
        ProbeSite {
            names,
            point: ProbePoint::Entry(role),
            signature,
            placement,
            function_offset: function.offset,
            function_length,
            sample: None,
        }
    }
}

/// Adds the functions with these names to `located`; a function already there at the same address gets the names. Fails if none
/// of the names can be probed.
fn locate_names<'data>(
    image: &Image<'data>,
    meaning: Meaning,
    names: &[String],
    allocator: usize,
    located: &mut Vec<Located<'data>>,
) -> Result<(), MissingReason> {
    let mut added = false;
    let mut reason = MissingReason::Undefined;
    for name in names {
        for &symbol in image.definitions(name) {
            match image.function(symbol).and_then(|function| add(function, name, meaning, allocator, located))
            {
                Ok(()) => added = true,
                Err(why_not) => reason = why_not,
            }
        }
    }
    if added { Ok(()) } else { Err(reason) }
}

fn add<'data>(
    function: Function<'data>,
    name: &str,
    meaning: Meaning,
    allocator: usize,
    located: &mut Vec<Located<'data>>,
) -> Result<(), MissingReason> {
    let Meaning { role, signature, may_pass_on } = meaning;
    let Some(known) = located.iter_mut().find(|known| known.function.address == function.address) else {
        let names = vec![name.to_owned()];
        located.push(Located { allocator, may_pass_on, names, role, signature, function });
        return Ok(());
    };
    if (known.role, known.signature) != (role, signature) {
        return Err(MissingReason::Shared);
    }
    known.may_pass_on &= may_pass_on;
    if !known.names.iter().any(|known| known == name) {
        known.names.push(name.to_owned());
    }
    Ok(())
}
