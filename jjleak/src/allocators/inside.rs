//! Replaces probes at entry and return by probes inside of a function, where these are proven to see as much (`cut`).

use std::collections::HashSet;

use super::{
    ProfiledAllocator, cut,
    exits::Follower,
    families::{self, MALLOC},
    located::Located,
    site::{Placement, ProbeSite, Role},
    symbols::Image,
};

/// Finds sites inside of the functions that everything else in a C library's allocator rests on, which take half of the
/// hits, and drops the functions for which it has found them. Other allocators' functions may call each other on the way.
pub(super) fn probe_inside(
    image: &Image<'_>,
    located: &mut Vec<Located<'_>>,
    found: &mut [ProfiledAllocator],
) {
    let is_basic = |it: &Located<'_>| {
        it.role == Role::Allocate
            && it.names.iter().any(|name| name == MALLOC)
            && families::is_c_library(&found[it.allocator].family)
    };
    let basic: Vec<_> = located.iter().filter(|it| is_basic(it)).map(|it| it.function.address).collect();
    if basic.is_empty() {
        return;
    }
    let accounted = located.iter().filter(|it| it.role.accounts_allocation());
    let accounted: HashSet<u64> = accounted.map(|it| it.function.address).collect();
    let follower = Follower::new(image);
    let prover = cut::Prover::new(image, &follower, &accounted);
    located.retain(|it| {
        if !basic.contains(&it.function.address) {
            return true;
        }
        match prover.find(&it.function.range(), it.signature) {
            Ok(sites) => {
                found[it.allocator].sites.extend(sites.into_iter().map(|site| inside_site(it, site)));
                false
            }
            Err(error) => {
                tracing::debug!("{}: entry and return are probed: {error}", it.names.join("/"));
                true
            }
        }
    });
}

/// The probe site of an instruction inside of a function.
fn inside_site(function: &Located<'_>, site: cut::Site) -> ProbeSite {
    let cut::Site { step, inside, cfa_words, stepping } = site;
    let role = match step {
        cut::Step::Whole => Role::Given,
        cut::Step::Note => Role::Noted,
        cut::Step::Settle => Role::Exit,
    };
    ProbeSite {
        names: function.names.clone(),
        role,
        signature: families::NOTHING,
        placement: Placement {
            delta: i64::from(inside.distance).cast_unsigned(),
            cfa_words,
            stepping,
            inside: Some(inside),
        },
        function_offset: function.function.offset,
        function_length: function.function.body.bytes().len() as u64,
    }
}
