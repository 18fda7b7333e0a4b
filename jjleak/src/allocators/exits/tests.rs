use super::Unproven;
use crate::allocators::test_elf::{self, CODE_ADDRESS, CODE_OFFSET, Symbol, function};
use crate::allocators::{Hints, MissingReason, ProbePoint, ProbeSite, ProfiledAllocator, Role, find_sites};

/// A file with `ret`, then `_Znwm` at 1, which makes it a tcmalloc.
fn tcmalloc(operator_new: &[u8], more: &[Symbol]) -> ProfiledAllocator {
    let code = [&[0xc3], operator_new].concat();
    let length = operator_new.len() as u64;
    let mut symbols: Vec<_> = ["malloc", "tc_malloc"].map(|name| function(name, 0, 1)).into();
    symbols.push(function("_Znwm", 1, length));
    symbols.extend(more.iter().map(|&Symbol { name, at, size, kind, is_local }| Symbol {
        name,
        at,
        size,
        kind,
        is_local,
    }));
    find_sites(&test_elf::elf(&code, &symbols), Hints::default()).unwrap().profiled.remove(0)
}

/// Distances of the exits from `operator new`.
fn exits(allocator: &ProfiledAllocator) -> Vec<u64> {
    let exits = allocator.sites.iter().filter(|site| site.point == ProbePoint::Exit);
    exits.map(|site| site.offset() - CODE_OFFSET - 1).collect()
}

fn named<'a>(allocator: &'a ProfiledAllocator, name: &str) -> Option<&'a ProbeSite> {
    let mut functions = allocator.sites.iter().filter(|site| site.point != ProbePoint::Exit);
    functions.find(|site| site.names.iter().any(|known| known == name))
}

fn why_not(allocator: &ProfiledAllocator) -> Option<&MissingReason> {
    allocator.missing.iter().find(|missing| missing.name == "_Znwm").map(|missing| &missing.reason)
}

#[test]
fn every_return_that_can_be_reached_is_an_exit() {
    let allocator = tcmalloc(
        &[
            0x48, 0x85, 0xff, // test rdi,rdi
            0x74, 0x01, //       je +1
            0xc3, //             ret            5
            0xe8, 0, 0, 0, 0, // call the next
            0xeb, 0x02, //       jmp +2
            0xc3, 0xc3, //       unreachable
            0xc3, //             ret            15
        ],
        &[],
    );

    assert_eq!(exits(&allocator), [5, 15]);
    assert_eq!(named(&allocator, "_Znwm").unwrap().point, ProbePoint::Entry(Role::AllocateOrThrow));
    assert_eq!(why_not(&allocator), None);
}

#[test]
fn code_without_a_name_belongs_to_who_jumps_there() {
    // jmp +1; int3; ret
    let code = [0xeb, 0x01, 0xcc, 0xc3];
    let allocator = tcmalloc(&code, &[]);

    assert_eq!(exits(&allocator), [3]);
}

#[test]
fn a_known_function_has_exits_of_its_own() {
    // test rdi,rdi; je to malloc; ret
    let allocator = tcmalloc(&[0x48, 0x85, 0xff, 0x74, 0xfa, 0xc3], &[]);

    assert_eq!(exits(&allocator), [5], "not the one of malloc");
}

#[test]
fn functions_share_their_exits() {
    // test rdi,rdi; ret; and new[] begins at the ret
    let allocator = tcmalloc(&[0x48, 0x85, 0xff, 0xc3], &[function("_Znam", 2, 3)]);

    assert_eq!(exits(&allocator), [3]);
    assert_eq!(allocator.sites[0].names, ["_Znwm", "_Znam"]);
}

/// Builds of Chromium have such code: without call frame information no exception can pass, which makes a return probe safe.
#[test]
fn an_operator_that_promises_not_to_throw_is_probed_at_its_return_where_none_can() {
    // ret; jmp rax
    let allocator = tcmalloc(&[0xc3, 0xff, 0xe0], &[function("_ZnwmRKSt9nothrow_t", 2, 2)]);

    assert_eq!(named(&allocator, "_ZnwmRKSt9nothrow_t").unwrap().point, ProbePoint::Entry(Role::Allocate));
}

#[test]
fn a_function_that_jumps_to_a_computed_address_is_only_counted() {
    // jmp rax
    let allocator = tcmalloc(&[0xff, 0xe0], &[]);

    assert_eq!(exits(&allocator), [0; 0]);
    assert_eq!(named(&allocator, "_Znwm").unwrap().point, ProbePoint::Entry(Role::UnseenAllocation));
    let reason = MissingReason::Unproven(Unproven::ComputedJump(CODE_ADDRESS + 1));
    assert_eq!(why_not(&allocator), Some(&reason));
}

#[test]
fn a_function_that_runs_out_of_the_code_is_only_counted() {
    let allocator = tcmalloc(&[0x90], &[]);

    assert_eq!(named(&allocator, "_Znwm").unwrap().point, ProbePoint::Entry(Role::UnseenAllocation));
}

#[test]
fn a_jump_to_another_function_of_the_same_meaning_is_that_function() {
    // ret; new[]: jmp -3
    let allocator = tcmalloc(&[0xc3, 0xeb, 0xfd], &[function("_Znam", 2, 2)]);

    let names = &named(&allocator, "_Znwm").unwrap().names;
    assert_eq!(names, &["_Znwm", "_Znam"]);
    assert_eq!(named(&allocator, "_Znwm").unwrap().label(), "operator new/operator new[]");
}

#[test]
fn a_delete_that_passes_on_to_free_is_left_out() {
    // new: ret; free: ret (2); delete: test rdi,rdi; jne to free; ret (3); sized delete: ret (9)
    let code = [0xc3, 0xc3, 0x48, 0x85, 0xff, 0x75, 0xfa, 0xc3, 0xc3];
    let more = [
        function("free", 2, 1),
        function("tc_free", 2, 1),
        function("_ZdlPv", 3, 6),
        function("_ZdlPvm", 9, 1),
    ];
    let allocator = tcmalloc(&code, &more);

    assert!(named(&allocator, "_ZdlPv").is_none());
    assert_eq!(named(&allocator, "_ZdlPvm").unwrap().point, ProbePoint::Entry(Role::Free));
    assert_eq!(named(&allocator, "free").unwrap().point, ProbePoint::Entry(Role::Free));
}
