use std::collections::HashSet;

mod frames;
mod libraries;
mod machine;
mod mutations;
mod ways_in;

use super::*;
use crate::allocators::{
    CallFollowing, Hints, MissingReason, ProbePoint, ProfiledAllocator, Role,
    exits::NO_RETURN,
    families, find_sites,
    symbols::{Image, Prefixes},
    test_elf::{self, CODE_ADDRESS, Symbol, function},
};

const RBX: u8 = 3;
const RBP: u8 = 5;
const RSI: u8 = 6;
const RDI: u8 = 7;

/// The sites of a `malloc` at the beginning of this code; the last byte belongs to a called function.
fn find_in(code: &[u8], symbols: &[Symbol]) -> Result<Vec<Site>, NoCut> {
    find_in_first(code.len() - 1, code, symbols)
}

/// The sites of a `malloc` of this length at the beginning of this code.
fn find_in_first(length: usize, code: &[u8], symbols: &[Symbol]) -> Result<Vec<Site>, NoCut> {
    let elf = test_elf::elf(code, symbols);
    let image = image(&elf);
    let accounted: HashSet<_> = image.definitions("calloc").iter().map(|it| it.address()).collect();
    let follower = Follower::new(&image);
    let addresses = CODE_ADDRESS..CODE_ADDRESS + length as u64;
    Prover::new(&image, &follower, &accounted).find(&addresses, families::SIZE_FIRST)
}

fn image(elf: &[u8]) -> Image<'_> {
    let names = |_: &Prefixes| NO_RETURN.iter().chain(&["calloc"]).map(|&name| name.to_owned()).collect();
    Image::parse(elf, None, families::MALLOCX, families::JEMALLOC_INTERNALS, names).unwrap()
}

/// Step, distance, and register of the size.
fn read(sites: &[Site]) -> Vec<(Step, i32, u8)> {
    sites.iter().map(|site| (site.step, site.inside.distance, site.inside.size)).collect()
}

/// Keeps the size in `rbx` across a call, and returns the result of the call.
const KEEPS_SIZE: [u8; 17] = [
    0x53, //                         0 push rbx
    0x48, 0x89, 0xfb, //             1 mov rbx,rdi
    0xe8, 0x07, 0x00, 0x00, 0x00, // 4 call 16
    0x48, 0x85, 0xc0, //             9 test rax,rax
    0x74, 0x00, //                  12 je 14
    0x5b, //                        14 pop rbx
    0xc3, //                        15 ret
    0xc3, //                        16 ret
];

#[test]
fn one_probe_does_where_size_and_block_are_known() {
    let sites = find_in(&KEEPS_SIZE, &[]).unwrap();

    assert_eq!(read(&sites), [(Step::Whole, 12, RBX)]);
    assert_eq!((sites[0].cfa_words, sites[0].inside.frame_pointer_words), (2, 0));
}

/// Keeps the size on one path only.
const LOSES_SIZE: [u8; 35] = [
    0x53, //                         0 push rbx
    0x48, 0x89, 0xfb, //             1 mov rbx,rdi
    0x85, 0xf6, //                   4 test esi,esi
    0x74, 0x0c, //                   6 je 20
    0xe8, 0x15, 0x00, 0x00, 0x00, // 8 call 34
    0x48, 0x85, 0xc0, //            13 test rax,rax
    0x74, 0x00, //                  16 je 18
    0x5b, //                        18 pop rbx
    0xc3, //                        19 ret
    0x31, 0xdb, //                  20 xor ebx,ebx
    0xe8, 0x07, 0x00, 0x00, 0x00, //22 call 34
    0x48, 0x85, 0xc0, //            27 test rax,rax
    0x74, 0x00, //                  30 je 32
    0x5b, //                        32 pop rbx
    0xc3, //                        33 ret
    0xc3, //                        34 ret
];

#[test]
fn a_call_is_noted_where_the_size_is_lost_before_the_block_is_known() {
    let sites = find_in(&LOSES_SIZE, &[]).unwrap();

    assert_eq!(read(&sites), [(Step::Settle, 30, 0), (Step::Whole, 16, RBX), (Step::Note, 22, RDI)]);
}

#[test]
fn two_probes_on_every_path_are_no_better_than_entry_and_return() {
    let mut code = LOSES_SIZE;
    // Both paths lose it.
    code[1..4].copy_from_slice(&[0x31, 0xdb, 0x90]);

    assert_eq!(find_in(&code, &[]), Err(NoCut::NoGain));
}

#[test]
fn a_call_that_fails_need_not_be_seen() {
    let code = [
        0x53, //                         0 push rbx
        0x48, 0x89, 0xfb, //             1 mov rbx,rdi
        0x48, 0x85, 0xff, //             4 test rdi,rdi
        0x78, 0x0c, //                   7 js 21
        0xe8, 0x0b, 0x00, 0x00, 0x00, // 9 call 25
        0x48, 0x85, 0xc0, //            14 test rax,rax
        0x74, 0x02, //                  17 je 21
        0x5b, //                        19 pop rbx
        0xc3, //                        20 ret
        0x31, 0xc0, //                  21 xor eax,eax
        0xeb, 0xfa, //                  23 jmp 19
        0xc3, //                        25 ret
    ];

    assert_eq!(read(&find_in(&code, &[]).unwrap()), [(Step::Whole, 17, RBX)]);
}

#[test]
fn a_block_that_is_computed_after_the_last_branch_is_not_known() {
    let mut code = KEEPS_SIZE.to_vec();
    // lea rax,[rax+16] instead of pop rbx; ret; ret
    code.truncate(14);
    code.extend([0x48, 0x8d, 0x40, 0x10, 0x5b, 0xc3]);
    code[5] = 10; // call the ret

    assert_eq!(find_in(&code, &[]), Err(NoCut::NoSites));
}

#[test]
fn a_block_of_a_second_try_is_not_that_of_the_first() {
    let code = [
        0x53, //                         0 push rbx
        0x48, 0x89, 0xfb, //             1 mov rbx,rdi
        0xe8, 0x0c, 0x00, 0x00, 0x00, // 4 call 21
        0x48, 0x85, 0xc0, //             9 test rax,rax
        0x75, 0x05, //                  12 jne 19
        0xe8, 0x02, 0x00, 0x00, 0x00, //14 call 21
        0x5b, //                        19 pop rbx
        0xc3, //                        20 ret
        0xc3, //                        21 ret
    ];

    assert_eq!(find_in(&code, &[]), Err(NoCut::NoSites));
}

/// Saves the caller's frame pointer, and uses its register.
const SAVES_FRAME_POINTER: [u8; 17] = [
    0x55, //                         0 push rbp
    0x48, 0x89, 0xfd, //             1 mov rbp,rdi
    0xe8, 0x07, 0x00, 0x00, 0x00, // 4 call 16
    0x48, 0x85, 0xc0, //             9 test rax,rax
    0x74, 0x00, //                  12 je 14
    0x5d, //                        14 pop rbp
    0xc3, //                        15 ret
    0xc3, //                        16 ret
];

#[test]
fn the_caller_frame_pointer_is_found_on_the_stack() {
    let sites = find_in(&SAVES_FRAME_POINTER, &[]).unwrap();

    assert_eq!(read(&sites), [(Step::Whole, 12, RBP)]);
    assert_eq!((sites[0].cfa_words, sites[0].inside.frame_pointer_words), (2, 2));
}

/// Keeps the block on the stack across a second call.
const SPILLS: [u8; 42] = [
    0x55, //                         0 push rbp
    0x53, //                         1 push rbx
    0x48, 0x89, 0xfb, //             2 mov rbx,rdi
    0x48, 0x83, 0xec, 0x10, //       5 sub rsp,16
    0xe8, 0x1b, 0x00, 0x00, 0x00, // 9 call 41
    0x48, 0x85, 0xc0, //            14 test rax,rax
    0x74, 0x0f, //                  17 je 34
    0x48, 0x89, 0x44, 0x24, 0x08, //19 mov [rsp+8],rax
    0xe8, 0x0c, 0x00, 0x00, 0x00, //24 call 41
    0x48, 0x8b, 0x44, 0x24, 0x08, //29 mov rax,[rsp+8]
    0x48, 0x83, 0xc4, 0x10, //      34 add rsp,16
    0x5b, //                        38 pop rbx
    0x5d, //                        39 pop rbp
    0xc3, //                        40 ret
    0xc3, //                        41 ret
];

#[test]
fn a_block_can_be_on_the_stack_in_the_meantime() {
    assert_eq!(read(&find_in(&SPILLS, &[]).unwrap()), [(Step::Whole, 17, RBX)]);
}

#[test]
fn a_frame_whose_address_is_given_away_keeps_nothing() {
    let code = [
        0x55, //                         0 push rbp
        0x53, //                         1 push rbx
        0x48, 0x89, 0xfb, //             2 mov rbx,rdi
        0x31, 0xed, //                   5 xor ebp,ebp
        0x48, 0x89, 0xe7, //             7 mov rdi,rsp
        0xe8, 0x08, 0x00, 0x00, 0x00, //10 call 23
        0x48, 0x85, 0xc0, //            15 test rax,rax
        0x74, 0x00, //                  18 je 20
        0x5b, //                        20 pop rbx
        0x5d, //                        21 pop rbp
        0xc3, //                        22 ret
        0xc3, //                        23 ret
    ];

    assert_eq!(find_in(&code, &[]), Err(NoCut::NoSites), "the caller's frame pointer may be gone");
}

#[test]
fn computed_jumps_are_not_followed() {
    assert_eq!(find_in(&[0xff, 0xe0], &[]), Err(NoCut::Leaves));
}

#[test]
fn a_function_that_calls_another_one_of_the_allocator_is_left_alone() {
    assert_eq!(find_in(&KEEPS_SIZE, &[function("calloc", 16, 1)]), Err(NoCut::Allocates));
}

#[test]
fn a_function_that_others_jump_into_is_left_alone() {
    let mut code = KEEPS_SIZE.to_vec();
    code.extend([0xe9, 0xf3, 0xff, 0xff, 0xff]); // jmp 9

    assert_eq!(find_in_first(16, &code, &[]), Err(NoCut::NotSealed));
}

/// Fails through a function that returns only if its first argument is 0.
const FAILS_BY_ARGUMENT: [u8; 43] = [
    0x53, //                         0 push rbx
    0x48, 0x89, 0xfb, //             1 mov rbx,rdi
    0xe8, 0x16, 0x00, 0x00, 0x00, // 4 call 31
    0x48, 0x85, 0xc0, //             9 test rax,rax
    0x74, 0x02, //                  12 je 16
    0x5b, //                        14 pop rbx
    0xc3, //                        15 ret
    0xbf, 0x01, 0x00, 0x00, 0x00, //16 mov edi,1
    0xe8, 0x06, 0x00, 0x00, 0x00, //21 call 32
    0x90, //                        26 nop
    0x90, //                        27 nop
    0xeb, 0xeb, //                  28 jmp 9
    0x90, //                        30 nop
    0xc3, //                        31 ret
    0x83, 0xe7, 0x01, //            32 and edi,1
    0x85, 0xff, //                  35 test edi,edi
    0x75, 0x01, //                  37 jne 40
    0xc3, //                        39 ret
    0x0f, 0x0b, //                  40 ud2
    0x90, //                        42 nop
];

#[test]
fn a_call_that_does_not_come_back_with_its_argument_ends_the_path() {
    assert_eq!(read(&find_in_first(31, &FAILS_BY_ARGUMENT, &[]).unwrap()), [(Step::Whole, 12, RBX)]);
    let mut comes_back = FAILS_BY_ARGUMENT;
    comes_back[17] = 2;
    assert_eq!(find_in_first(31, &comes_back, &[]), Err(NoCut::NoSites));
}

#[test]
fn the_size_can_be_in_any_register() {
    let mut code = LOSES_SIZE;
    // mov rsi,rdi; xor edi,edi... instead of xor ebx,ebx and the call: the size is in rsi only
    code[4..6].copy_from_slice(&[0x85, 0xd2]); // test edx,edx
    let mut code = code.to_vec();
    code.splice(20..22, [0x48, 0x89, 0xfe, 0x31, 0xff, 0x31, 0xdb]);
    code[9] += 5; // the called function has moved
    let sites = find_in(&code, &[]).unwrap();

    assert_eq!(sites.last().map(|site| (site.step, site.inside.size)), Some((Step::Note, RSI)));
}

fn glibc(following: CallFollowing) -> ProfiledAllocator {
    let symbols = [("malloc", 0), ("free", 16), ("gnu_get_libc_version", 16)];
    let symbols = symbols.map(|(name, at)| function(name, at, if at == 0 { 16 } else { 1 }));
    let elf = test_elf::elf(&KEEPS_SIZE, &symbols);
    find_sites(&elf, Hints { following, ..Hints::default() }).unwrap().profiled.remove(0)
}

#[test]
fn the_c_library_malloc_is_probed_inside_unless_that_is_not_wanted() {
    let roles = |following| glibc(following).sites.iter().map(|site| site.point).collect::<Vec<_>>();

    assert_eq!(roles(CallFollowing::Inside), [ProbePoint::Block, ProbePoint::Entry(Role::Free)]);
    assert_eq!(
        roles(CallFollowing::EntryAndReturn),
        [ProbePoint::Entry(Role::Allocate), ProbePoint::Entry(Role::Free)]
    );
}

#[test]
fn a_function_with_many_sites_is_one_function_with_one_frame() {
    let glibc = glibc(CallFollowing::Inside);
    let [malloc, free] = glibc.functions().collect::<Vec<_>>()[..] else { panic!("two functions") };

    assert_eq!(malloc.frame_offset(), malloc.function_offset);
    assert_ne!(malloc.offset(), malloc.frame_offset());
    assert_eq!(free.offset(), free.frame_offset());
    assert!(glibc.missing.iter().all(|missing| missing.reason == MissingReason::Undefined));
}
