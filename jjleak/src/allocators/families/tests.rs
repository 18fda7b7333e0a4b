use std::collections::HashSet;

use super::*;
use crate::allocators::{
    Hints, MissingFunction, MissingReason, ModuleAllocators, ProbePoint, Unfollowed, find_sites,
    test_elf::{self, Symbol, function},
};

/// `push rbx; pop rbx; ret`.
const CODE: [u8; 3] = [0x53, 0x5b, 0xc3];

/// jemalloc's control functions, without a prefix and with the prefix of Rust's tikv-jemallocator.
const MALLCTL: &str = "mallctl=mallctlnametomib=mallctlbymib";
const RUST_MALLCTL: &str = "_rjem_mallctl=_rjem_mallctlnametomib=_rjem_mallctlbymib";

/// The allocators in a file that defines these names, each with code of its own except those joined by `=`.
fn found(names: &[&'static str]) -> ModuleAllocators {
    let code = CODE.repeat(names.len());
    let at = |index: usize| (index * CODE.len()) as u64;
    let aliases = |(index, names): (usize, &&'static str)| -> Vec<Symbol> {
        names.split('=').map(|name| function(name, at(index), CODE.len() as u64)).collect()
    };
    let symbols: Vec<_> = names.iter().enumerate().flat_map(aliases).collect();
    find_sites(&test_elf::elf(&code, &symbols), Hints::default()).unwrap()
}

/// Each family with the names of its functions.
fn functions(names: &[&'static str]) -> Vec<(String, Vec<String>)> {
    let names_of = |sites: &[crate::allocators::ProbeSite]| {
        let functions = sites.iter().filter(|site| site.point != ProbePoint::Exit);
        functions.flat_map(|site| site.names.iter().cloned()).collect()
    };
    let found = found(names).profiled;
    found.iter().map(|allocator| (allocator.family.clone(), names_of(&allocator.sites))).collect()
}

fn families(names: &[&'static str]) -> Vec<String> {
    functions(names).into_iter().map(|(family, _)| family).collect()
}

#[test]
fn families_are_recognized_by_what_they_define() {
    assert_eq!(families(&["malloc", "free", "gnu_get_libc_version"]), ["glibc"]);
    assert_eq!(families(&["malloc", "free", "__libc_mallopt"]), ["glibc"], "a static program");
    assert_eq!(families(&["malloc", "free", "mallocx", "nallocx", MALLCTL]), ["jemalloc"]);
    assert_eq!(families(&["malloc=tc_malloc", "free=tc_free"]), ["tcmalloc"]);
    assert_eq!(families(&["malloc=TCMallocInternalMalloc", "free"]), ["tcmalloc"]);
    assert_eq!(families(&["malloc=mi_malloc", "free=mi_free"]), ["mimalloc"]);
    assert_eq!(families(&["malloc", "free", "_dlstart"]), ["musl"]);
    assert_eq!(families(&["malloc", "__libc_malloc_impl"]), ["musl"], "a static program that never frees");
}

#[test]
fn any_prefix_of_jemalloc_is_found() {
    let rust = ["_rjem_malloc", "_rjem_mallocx", "_rjem_nallocx", RUST_MALLCTL];
    let own = ["my_malloc", "my_mallocx", "my_nallocx", "my_mallctl=my_mallctlnametomib=my_mallctlbymib"];

    assert_eq!(
        functions(&rust),
        [("jemalloc".to_owned(), rust[..2].iter().map(|&name| name.to_owned()).collect())]
    );
    assert_eq!(
        functions(&own),
        [("jemalloc".to_owned(), own[..2].iter().map(|&name| name.to_owned()).collect())]
    );
}

#[test]
fn jemalloc_is_found_where_the_linker_has_left_out_what_is_not_called() {
    assert_eq!(families(&["_rjem_malloc", "_rjem_mallocx", "_rjem_je_arena_boot"]), ["jemalloc"]);
    assert_eq!(families(&["je_malloc", "je_mallocx", "je_arena_boot"]), ["jemalloc"]);
    assert_eq!(families(&["malloc", "mallocx", "_rjem_je_arena_boot"]), ["jemalloc"]);
    assert_eq!(
        families(&["my_malloc", "my_free", "my_je_arena_malloc_hard"]),
        ["jemalloc"],
        "without mallocx"
    );
    assert_eq!(families(&["malloc", "free", "mallocx", "arena_malloc_hard"]), ["jemalloc"], "rustc's");
    assert_eq!(families(&["site_malloc", "site_mallocx", "je_arena_boot"]), [""; 0], "a wrapper");
}

#[test]
fn a_wrapper_around_jemalloc_is_no_jemalloc() {
    assert_eq!(families(&["site_malloc", "site_mallocx", "site_rallocx", "site_free"]), [""; 0]);
}

#[test]
fn glibc_names_in_other_allocators_do_not_make_them_glibc() {
    let wrapper = functions(&["malloc", "free", "__libc_malloc", "__libc_memalign", "__libc_free"]);

    assert_eq!(wrapper, [(UNKNOWN.to_owned(), vec!["malloc".to_owned(), "free".to_owned()])]);
    assert_eq!(families(&["malloc=tc_malloc=__libc_malloc", "free=__libc_free"]), ["tcmalloc"]);
}

#[test]
fn a_malloc_of_no_family_is_an_allocator_by_its_name() {
    assert_eq!(families(&["malloc"]), [UNKNOWN], "what it gives is freed elsewhere");
    assert_eq!(families(&["malloc", "free", "__asan_init"]), ["AddressSanitizer"]);
    assert_eq!(
        families(&["malloc", "free", "_rjem_malloc", "_rjem_free", "_rjem_je_arena_boot"]),
        ["jemalloc", UNKNOWN]
    );
    assert_eq!(families(&["free", "calloc"]), [""; 0], "the C library's malloc");
}

#[test]
fn a_hidden_malloc_is_an_allocator_only_with_all_that_belongs_to_it() {
    let found = |names: &[&'static str]| {
        let at = |index: usize| (index * CODE.len()) as u64;
        let symbol = |(index, name): (usize, &&'static str)| Symbol {
            is_local: true,
            ..function(name, at(index), CODE.len() as u64)
        };
        let symbols: Vec<_> = names.iter().enumerate().map(symbol).collect();
        find_sites(&test_elf::elf(&CODE.repeat(names.len()), &symbols), Hints::default())
            .unwrap()
            .profiled
            .len()
    };

    assert_eq!(found(&["malloc", "calloc", "realloc", "free"]), 1);
    assert_eq!(found(&["malloc", "free"]), 0, "functions of a file that are called so");
}

#[test]
fn a_malloc_that_is_chosen_at_run_time_is_not_followed() {
    let indirect = Symbol { kind: test_elf::IFUNC, ..function("malloc", 0, 3) };
    let symbols = [indirect, function("free", 3, 3)];
    let found = find_sites(&test_elf::elf(&CODE.repeat(2), &symbols), Hints::default()).unwrap();

    let malloc = MissingFunction { name: MALLOC.to_owned(), reason: MissingReason::Indirect };
    assert_eq!(found.unfollowed, [Unfollowed::Function(malloc)]);
}

#[test]
fn allocators_in_one_file_share_no_function() {
    let musl = ["malloc", "realloc", "__libc_malloc_impl"];
    let rust = ["_rjem_malloc", "_rjem_realloc", "_rjem_mallocx", "_rjem_nallocx", RUST_MALLCTL];
    let names = [&musl[..], &rust].concat();
    let [jemalloc, musl] = &functions(&names)[..] else { panic!("not two families") };

    assert_eq!(jemalloc.1, ["_rjem_malloc", "_rjem_realloc", "_rjem_mallocx"]);
    assert_eq!(musl.1, ["malloc", "realloc"]);
}

#[test]
fn a_prefixed_allocator_leaves_malloc_to_the_c_library() {
    let names = ["malloc", "free", "gnu_get_libc_version", "mi_malloc", "mi_free"];
    let [mimalloc, glibc] = &functions(&names)[..] else { panic!("not two families") };

    assert_eq!(mimalloc.1, ["mi_malloc", "mi_free"]);
    assert_eq!(glibc.1, ["malloc", "free"]);
}

#[test]
fn operators_belong_to_jemalloc_only_where_malloc_does() {
    let plain = functions(&["malloc", "mallocx", "nallocx", MALLCTL, "_Znwm"]);
    let prefixed = functions(&["_rjem_mallocx", "_rjem_nallocx", RUST_MALLCTL, "_Znwm"]);

    assert_eq!(plain[0].1, ["malloc", "mallocx", "_Znwm"]);
    assert_eq!(prefixed[0].1, ["_rjem_mallocx"], "a Rust program with C++ in it");
}

#[test]
fn a_c_library_without_malloc_is_no_allocator() {
    let absent = ModuleAllocators { profiled: vec![], unfollowed: vec![], stripped: true };

    assert_eq!(found(&["gnu_get_libc_version"]), absent);
    assert_eq!(found(&["_dlstart", "free"]), absent);
    assert_eq!(found(&["malloc", "free", "_rtld_global"]), absent, "the dynamic linker");
    assert_eq!(found(&["main"]), absent);
}

#[test]
fn no_name_stands_in_two_rows() {
    for family in FAMILIES {
        let prefixes = vec![String::new(), "x_".to_owned()];
        let names: Vec<_> =
            Held { family, name: family.name, prefixes }.functions().flat_map(|(_, names)| names).collect();
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len(), "{}", family.name);
    }
}
