//! Every allocation function and the corner cases of its contract: reports equal the program's own accounting, by call site, to
//! the byte and to the object.

use std::fs;

use crate::support::accounts::assert_nothing_lost;
use crate::support::jjleak::Ended;
use crate::support::ledger::{assert_exact, assert_exact_with};
use crate::support::privilege::require_bpf;

/// Tests that run a scenario in which nothing may be lost.
macro_rules! exact {
    ($($name:ident: $scenario:literal;)+) => {
        $(
            #[test]
            fn $name() {
                require_bpf!();
                assert_nothing_lost(&assert_exact($scenario));
            }
        )+
    };
}

exact! {
    malloc_is_counted: "malloc";
    malloc_of_nothing_is_an_object_of_no_bytes: "malloc_zero";
    a_malloc_that_fails_changes_nothing: "malloc_fail";
    free_of_null_is_no_free: "free_null";
    frees_of_what_was_there_before_are_told_apart: "free_earlier";
    calloc_is_counted: "calloc";
    a_calloc_that_overflows_changes_nothing: "calloc_overflow";
    a_block_that_grows_moves_to_its_new_site: "realloc_grow";
    a_block_that_shrinks_moves_to_its_new_site: "realloc_shrink";
    a_block_that_cannot_grow_stays_what_it_was: "realloc_fail";
    realloc_of_null_is_malloc: "realloc_null";
    realloc_to_nothing_is_free: "realloc_zero";
    realloc_of_what_was_there_before_is_counted: "realloc_earlier";
    reallocarray_is_counted_once: "reallocarray";
    a_reallocarray_that_overflows_changes_nothing: "reallocarray_overflow";
    posix_memalign_is_counted: "posix_memalign";
    a_posix_memalign_that_fails_changes_nothing: "posix_memalign_error";
    aligned_alloc_is_counted: "aligned_alloc";
    memalign_is_counted: "memalign";
    valloc_is_counted: "valloc";
    pvalloc_counts_what_was_asked_for: "pvalloc";
    blocks_beyond_4_gib_are_counted_whole: "beyond_4_gib";
    every_function_at_random: "storm";
    many_blocks_are_counted: "many_blocks";
}

#[test]
fn calls_are_exact_by_probes_at_entry_and_return_too() {
    require_bpf!();
    for scenario in ["malloc", "malloc_zero", "malloc_fail", "calloc", "memalign", "storm"] {
        assert_nothing_lost(&assert_exact_with(scenario, &["--entry-and-return"]));
    }
}

#[test]
fn one_probe_sees_a_malloc_whose_code_allows_it() {
    require_bpf!();
    let sites = |options: &[&str]| {
        let ended = Ended::of(["-v", "--format", "json"].iter().chain(options).chain(&["--", "true"]));
        let of_malloc = |line: &&String| line.contains(" malloc at file offset ");
        ended.stderr.iter().filter(of_malloc).cloned().collect::<Vec<_>>()
    };

    let [malloc] = &sites(&["--entry-and-return"])[..] else { panic!("malloc has one site") };
    assert!(malloc.contains("(Entry(Allocate), "), "{malloc}");
    // The result depends on the C library's code; it is known for that of Debian 12 only.
    let is_debian_12 = fs::read_to_string("/etc/os-release").is_ok_and(|it| it.contains("bookworm"));
    let inside = sites(&[]);
    assert!(!is_debian_12 || inside.iter().any(|site| site.contains("(Block, ")), "{inside:#?}");
}
