//! Replaces entry and return probes by probes inside a function, where these provably see the same calls (`cut`).

use std::collections::HashSet;

use super::{
    ProfiledAllocator, cut,
    exits::Follower,
    families::{self, MALLOC},
    located::Located,
    site::{Placement, ProbePoint, ProbeSite, Role},
    symbols::Image,
};

/// Finds sites inside the functions that the rest of a C library's allocator calls, and drops the functions with such sites from
/// `located`. Sites inside a function halve the hits. Functions of other allocators may call each other before they allocate, and
/// are left alone.
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
    let point = match step {
        cut::Step::Whole => ProbePoint::Block,
        cut::Step::Note => ProbePoint::Size,
        cut::Step::Settle => ProbePoint::Exit,
    };
    ProbeSite {
        names: function.names.clone(),
        point,
        signature: families::NOTHING,
        placement: Placement {
            delta: i64::from(inside.distance).cast_unsigned(),
            cfa_words,
            stepping,
            inside: Some(inside),
        },
        function_offset: function.function.offset,
        function_length: function.function.body.bytes().len() as u64,
        sample: None,
    }
}
