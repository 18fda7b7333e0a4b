mod hostile;

use super::{
    test_elf::{self, CODE_OFFSET, FUNC, IFUNC, Symbol, function},
    *,
};
use iced_x86::{Decoder, DecoderOptions, FlowControl};
use proptest::{prelude::*, sample::Index};
use std::{fs, path::PathBuf};

/// `push rbx; pop rbx; ret`, twice.
const TWO_FUNCTIONS: [u8; 6] = [0x53, 0x5b, 0xc3, 0x53, 0x5b, 0xc3];

fn glibc(symbols: Vec<Symbol>) -> ProfiledAllocator {
    let symbols = symbols.into_iter().chain([function("gnu_get_libc_version", 0, 3)]);
    let file = test_elf::elf(&TWO_FUNCTIONS, &symbols.collect::<Vec<_>>());
    only(&file, "glibc")
}

/// The file's only allocator, which must belong to this family.
fn only(file: &[u8], family: &str) -> ProfiledAllocator {
    let mut found = find_sites(file, Hints::default()).unwrap().profiled;
    let allocator = found.pop().unwrap();
    assert_eq!((found, allocator.family.as_str()), (vec![], family));
    allocator
}

fn reason(allocator: &ProfiledAllocator, name: &str) -> Option<MissingReason> {
    allocator.missing.iter().find(|missing| missing.name == name).map(|missing| missing.reason)
}

#[test]
fn offsets_are_in_the_file_not_in_memory() {
    let glibc = glibc(vec![function("malloc", 0, 3), function("free", 3, 3)]);

    let offsets: Vec<_> = glibc.sites.iter().map(|site| (site.names.join(","), site.offset())).collect();
    assert_eq!(offsets, [("malloc".to_owned(), CODE_OFFSET), ("free".to_owned(), CODE_OFFSET + 3)]);
}

#[test]
fn aliases_share_a_site() {
    let symbols = ["malloc", "memalign", "aligned_alloc"].map(|name| function(name, 0, 3));
    let symbols = symbols.into_iter().chain(["free", "cfree"].map(|name| function(name, 3, 3)));
    // malloc takes its size from another argument than memalign: it must not share their site.
    let glibc = glibc(symbols.skip(1).chain([function("malloc", 4, 2)]).collect());

    let names: Vec<_> = glibc.sites.iter().map(|site| site.names.join(",")).collect();
    assert_eq!(names, ["malloc", "aligned_alloc,memalign", "free,cfree"]);
}

#[test]
fn functions_that_cannot_be_probed_are_listed_with_the_reason() {
    let glibc = glibc(vec![
        function("malloc", 0, 3),
        function("free", 3, 3),
        function("calloc", 0, 3),
        function("valloc", 0x100, 3),
        Symbol { kind: IFUNC, ..function("realloc", 0, 3) },
        Symbol { kind: FUNC - 1, ..function("memalign", 0, 3) },
    ]);

    assert_eq!(glibc.sites.len(), 2);
    assert_eq!(reason(&glibc, "calloc"), Some(MissingReason::Shared), "the same code as malloc");
    assert_eq!(reason(&glibc, "valloc"), Some(MissingReason::OutsideCode));
    assert_eq!(reason(&glibc, "realloc"), Some(MissingReason::Indirect));
    assert_eq!(reason(&glibc, "memalign"), Some(MissingReason::NoFunction));
    assert_eq!(reason(&glibc, "pvalloc"), Some(MissingReason::Undefined));
    assert_eq!(reason(&glibc, "free"), None, "it has no cfree, which is no loss");
}

#[test]
fn a_function_of_unknown_size_is_probed_at_its_entry() {
    // test rdi,rdi; je +1; nop; ret
    let code = [0x48, 0x85, 0xff, 0x74, 0x01, 0x90, 0xc3];
    let free_at = |size| {
        let symbols = ["malloc", "gnu_get_libc_version"].map(|name| function(name, 6, 1));
        let symbols: Vec<_> = symbols.into_iter().chain([function("free", 0, size)]).collect();
        let glibc = only(&test_elf::elf(&code, &symbols), "glibc");
        glibc.sites.iter().find(|site| site.point == ProbePoint::Entry(Role::Free)).unwrap().placement.delta
    };

    assert_eq!(free_at(7), 3);
    assert_eq!(free_at(0), 0, "no size");
    assert_eq!(free_at(8), 0, "longer than the code");
}

#[test]
fn files_for_other_machines_are_refused() {
    let mut file = test_elf::elf(&TWO_FUNCTIONS, &[]);
    file[18] = 183; // EM_AARCH64
    assert!(matches!(find_sites(&file, Hints::default()), Err(Error::Machine(183))));
    assert!(matches!(find_sites(b"#!/bin/sh\n", Hints::default()), Err(Error::Parse(_))));
}

#[test]
fn overlapping_code_is_refused() {
    // The code is a second program header, for an executable segment that spans the whole file.
    let mut code = [0; 56];
    code[..8].copy_from_slice(&[1, 0, 0, 0, 5, 0, 0, 0]);
    let length = test_elf::elf(&code, &[]).len() as u64;
    code[32..40].copy_from_slice(&length.to_le_bytes());
    let mut file = test_elf::elf(&code, &[]);
    file[56] = 2; // e_phnum

    assert!(matches!(find_sites(&file, Hints::default()), Err(Error::OverlappingCode)));
}

/// The C library of this test process.
fn own_libc() -> Vec<u8> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps.lines().find_map(|line| {
        let path = PathBuf::from(line.split_whitespace().nth(5)?);
        path.file_name()?.to_str()?.starts_with("libc.so.6").then_some(path)
    });
    fs::read(path.expect("the test is linked to glibc")).unwrap()
}

#[test]
fn every_function_of_this_machines_libc_is_found_and_proven() {
    let libc = own_libc();
    let hints = Hints { following: CallFollowing::EntryAndReturn, ..Hints::default() };
    let glibc = find_sites(&libc, hints).unwrap().profiled.remove(0);

    assert_eq!(glibc.missing, []);
    for name in [
        "malloc",
        "calloc",
        "realloc",
        "reallocarray",
        "posix_memalign",
        "aligned_alloc",
        "memalign",
        "valloc",
        "pvalloc",
        "free",
    ] {
        let holders = glibc.sites.iter().filter(|site| site.names.iter().any(|known| known == name)).count();
        assert_eq!(holders, 1, "{name}");
    }
    for site in &glibc.sites {
        assert_site_is_reached_from_the_entry(&libc, site);
    }
}

/// Decodes from the entry to the site, which must be an instruction of the entry block, and emulated if the placement says it is.
fn assert_site_is_reached_from_the_entry(file: &[u8], site: &ProbeSite) {
    let code = &file[usize::try_from(site.function_offset).unwrap()..];
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    let mut instruction = decoder.decode();
    while instruction.ip() < site.placement.delta {
        assert_eq!(instruction.flow_control(), FlowControl::Next, "{:?} leaves before its site", site.names);
        instruction = decoder.decode();
    }
    assert_eq!(instruction.ip(), site.placement.delta, "{:?}", site.names);
    let branches = matches!(
        instruction.flow_control(),
        FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
    );
    match site.placement.stepping {
        Stepping::EmulatedBranch => assert!(branches || instruction.mnemonic() == iced_x86::Mnemonic::Nop),
        Stepping::EmulatedPush => assert!(
            instruction.mnemonic() == iced_x86::Mnemonic::Push
                || instruction.flow_control() == FlowControl::Call
        ),
        Stepping::SingleStep => assert_eq!(site.placement.delta, 0),
    }
    assert!(!site.point.probes_return() || site.placement.cfa_words == 1, "{:?}", site.names);
}

#[test]
fn the_hot_functions_of_this_machines_libc_are_not_single_stepped() {
    let glibc = only(&own_libc(), "glibc");
    let stepping = |name: &str| {
        let site = glibc.sites.iter().find(|site| site.names.iter().any(|known| known == name));
        site.unwrap().placement.stepping
    };

    for name in ["malloc", "calloc", "realloc"] {
        assert!(stepping(name) <= Stepping::EmulatedPush, "{name}");
    }
    assert_eq!(stepping("free"), Stepping::EmulatedBranch, "at the branch that skips free(NULL)");
}

#[test]
fn a_program_that_calls_an_allocator_holds_none() {
    let found = find_sites(&fs::read("/bin/sh").unwrap(), Hints::default()).unwrap();
    assert_eq!((found.profiled, found.unfollowed), (vec![], vec![]));
}

/// A small complete library for the hostile cases: small, so that random damage hits relevant bytes.
fn small_libc() -> Vec<u8> {
    let code = [0x48, 0x85, 0xff, 0x74, 0x01, 0x90, 0xc3, 0x41, 0x54, 0x41, 0x5c, 0xc3];
    let symbols = [function("free", 0, 7), function("malloc", 7, 5), function("gnu_get_libc_version", 7, 5)];
    test_elf::elf(&code, &symbols)
}

/// Truncates the file and overwrites bytes: those of `headers` among the first 1024, which hold the ELF and program headers,
/// those of `anywhere` in the whole file.
fn damaged(
    mut file: Vec<u8>,
    cut: Option<Index>,
    headers: &[(usize, u8)],
    anywhere: &[(Index, u8)],
) -> Vec<u8> {
    if let Some(cut) = cut {
        file.truncate(cut.index(file.len()) + 1);
    }
    for (at, byte) in headers {
        if let Some(place) = file.get_mut(*at) {
            *place = *byte;
        }
    }
    for (at, byte) in anywhere {
        *at.get_mut(&mut file) = *byte;
    }
    file
}

fn sites_lie_in_the_file(file: &[u8]) -> bool {
    let allocators = find_sites(file, Hints::default()).map_or_else(|_| Vec::new(), |found| found.profiled);
    let mut sites = allocators.iter().flat_map(|allocator| &allocator.sites);
    sites.all(|site| site.offset() < file.len() as u64)
}

proptest! {
    #[test]
    fn a_small_damaged_file_never_panics(
        cut in prop::option::of(any::<Index>()), anywhere in prop::collection::vec(any::<(Index, u8)>(), 0..8),
    ) {
        let file = damaged(small_libc(), cut, &[], &anywhere);
        prop_assert!(sites_lie_in_the_file(&file));
    }
}

proptest! {
    // Each case reads the whole C library.
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn a_damaged_libc_never_panics(
        cut in prop::option::of(any::<Index>()),
        headers in prop::collection::vec((0..1024_usize, any::<u8>()), 0..4),
        anywhere in prop::collection::vec(any::<(Index, u8)>(), 0..2_000),
    ) {
        let file = damaged(own_libc(), cut, &headers, &anywhere);
        prop_assert!(sites_lie_in_the_file(&file));
    }
}
