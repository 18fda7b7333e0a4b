use super::*;
use jjleak_common::cookie::{ARG0, ARG1, ARG2, ResultIn};
use proptest::prelude::*;

const MALLOC: Signature = Signature {
    size: Some(ARG0),
    count: None,
    pointer: None,
    extra: None,
    result: ResultIn::Return,
    zero_frees: false,
};
const FREE: Signature = Signature { size: None, pointer: Some(ARG0), ..MALLOC };

fn place_malloc(code: &[u8]) -> Placement {
    place(Body::Whole(code), Role::Allocate, MALLOC, u64::MAX)
}

fn place_free(code: &[u8]) -> Placement {
    place(Body::Whole(code), Role::Free, FREE, u64::MAX)
}

const fn at(delta: u64, cfa_words: u16, stepping: Stepping) -> Placement {
    Placement { delta, cfa_words, stepping, inside: None }
}

const STEPPED_ENTRY: Placement = at(0, 1, Stepping::SingleStep);

#[test]
fn malloc_behind_endbr64_is_probed_at_its_first_push() {
    let code = [
        0xf3, 0x0f, 0x1e, 0xfa, // endbr64
        0x41, 0x54, //             push r12
        0x49, 0x89, 0xfc, //       mov r12,rdi
        0xc3, //                   ret
    ];
    assert_eq!(place_malloc(&code), at(4, 1, Stepping::EmulatedPush));
}

#[test]
fn free_behind_endbr64_is_probed_at_the_branch_that_skips_null() {
    let code = [
        0xf3, 0x0f, 0x1e, 0xfa, // endbr64
        0x48, 0x85, 0xff, //       test rdi,rdi
        0x74, 0x01, //             je +1
        0x90, //                   nop
        0xc3, //                   ret
    ];
    assert_eq!(place_free(&code), at(7, 1, Stepping::EmulatedBranch));
}

#[test]
fn a_jump_at_the_entry_is_probed_there() {
    let code = [
        0xeb, 0x01, // jmp +1
        0xcc, //       int3
        0xc3, //       ret
    ];
    assert_eq!(place_malloc(&code), at(0, 1, Stepping::EmulatedBranch));
}

#[test]
fn a_loop_back_to_the_entry_passes_entry_and_site_equally_often() {
    let code = [
        0x48, 0x85, 0xff, // test rdi,rdi
        0x74, 0x05, //       je +5
        0x48, 0x8b, 0x3f, // mov rdi,[rdi]
        0xeb, 0xf6, //       jmp to the entry
        0xc3, //             ret
    ];
    assert_eq!(place_free(&code), at(3, 1, Stepping::EmulatedBranch));
}

#[test]
fn a_loop_back_into_the_block_leaves_only_the_entry() {
    let code = [
        0x48, 0x89, 0xf8, // mov rax,rdi
        0x48, 0x85, 0xc0, // test rax,rax   <- the loop begins here
        0x74, 0x05, //       je +5
        0x48, 0x8b, 0x00, // mov rax,[rax]
        0xeb, 0xf6, //       jmp to the test
        0xc3, //             ret
    ];
    assert_eq!(place_free(&code), STEPPED_ENTRY);
}

#[test]
fn a_branch_from_elsewhere_into_the_block_leaves_only_what_lies_before_its_target() {
    let code = [
        0x48, 0x85, 0xff, // test rdi,rdi
        0x53, //             push rbx
        0x74, 0x00, //       je +0
        0x5b, //             pop rbx
        0xc3, //             ret
    ];
    let sealed = |bytes| place(Body::Whole(&code), Role::Free, FREE, bytes);
    assert_eq!(sealed(8), at(4, 2, Stepping::EmulatedBranch));
    assert_eq!(sealed(4), at(3, 1, Stepping::EmulatedPush));
    assert_eq!(sealed(3), STEPPED_ENTRY);
}

#[test]
fn a_clobbered_argument_leaves_only_the_entry() {
    let code = [
        0xbf, 0x01, 0x00, 0x00, 0x00, // mov edi,1
        0x53, //                         push rbx
        0x5b, //                         pop rbx
        0xc3, //                         ret
    ];
    assert_eq!(place_malloc(&code), STEPPED_ENTRY);
}

#[test]
fn an_implicitly_clobbered_argument_counts_too() {
    // glibc 2.36's reallocarray
    let code = [
        0x48, 0x89, 0xf0, // mov rax,rsi
        0x48, 0xf7, 0xe2, // mul rdx           (writes rdx)
        0x70, 0x00, //       jo +0
        0xc3, //             ret
    ];
    let reallocarray = Signature { pointer: Some(ARG0), count: Some(ARG1), size: Some(ARG2), ..MALLOC };
    assert_eq!(place(Body::Whole(&code), Role::Resize, reallocarray, u64::MAX), STEPPED_ENTRY);
    assert_eq!(place_malloc(&code), at(6, 1, Stepping::EmulatedBranch), "whoever does not read rdx");
}

#[test]
fn an_overwritten_frame_pointer_leaves_only_what_lies_before() {
    let code = [
        0x48, 0x85, 0xff, // test rdi,rdi
        0x55, //             push rbp
        0x48, 0x89, 0xe5, // mov rbp,rsp
        0x74, 0x00, //       je +0
        0xc9, //             leave
        0xc3, //             ret
    ];
    assert_eq!(place_free(&code), at(3, 1, Stepping::EmulatedPush));
}

#[test]
fn free_may_be_probed_with_the_stack_pointer_moved() {
    let code = [
        0x48, 0x83, 0xec, 0x18, // sub rsp,0x18
        0x55, //                   push rbp
        0x48, 0x85, 0xff, //       test rdi,rdi
        0x74, 0x01, //             je +1
        0x90, //                   nop
        0x5d, //                   pop rbp
        0x48, 0x83, 0xc4, 0x18, // add rsp,0x18
        0xc3, //                   ret
    ];
    assert_eq!(place_free(&code), at(8, 5, Stepping::EmulatedBranch));
}

#[test]
fn lea_moves_the_stack_pointer_too() {
    let code = [
        0x48, 0x8d, 0x64, 0x24, 0xe0, // lea rsp,[rsp-0x20]
        0x48, 0x85, 0xff, //             test rdi,rdi
        0x75, 0x00, //                   jne +0
        0x48, 0x8d, 0x64, 0x24, 0x20, // lea rsp,[rsp+0x20]
        0xc3, //                         ret
    ];
    assert_eq!(place_free(&code), at(8, 5, Stepping::EmulatedBranch));
}

#[test]
fn malloc_may_not_be_probed_with_the_stack_pointer_moved() {
    let code = [
        0x48, 0x83, 0xff, 0x08, // cmp rdi,8
        0x48, 0x83, 0xec, 0x08, // sub rsp,8
        0x77, 0x00, //             ja +0
        0x48, 0x83, 0xc4, 0x08, // add rsp,8
        0xc3, //                   ret
    ];
    assert_eq!(place_malloc(&code), STEPPED_ENTRY);
}

#[test]
fn malloc_may_be_probed_once_the_stack_pointer_is_back() {
    let code = [
        0x48, 0x83, 0xec, 0x08, // sub rsp,8
        0x48, 0x83, 0xc4, 0x08, // add rsp,8
        0x53, //                   push rbx
        0x5b, //                   pop rbx
        0xc3, //                   ret
    ];
    assert_eq!(place_malloc(&code), at(8, 1, Stepping::EmulatedPush));
}

#[test]
fn malloc_is_not_probed_after_its_return_address_may_have_been_read() {
    let reads = [
        0x48, 0x8b, 0x04, 0x24, // mov rax,[rsp]
        0x53, //                   push rbx
        0x5b, //                   pop rbx
        0xc3, //                   ret
    ];
    let copies = [
        0x48, 0x89, 0xe0, // mov rax,rsp
        0x53, //             push rbx
        0x5b, //             pop rbx
        0xc3, //             ret
    ];
    assert_eq!(place_malloc(&reads), STEPPED_ENTRY);
    assert_eq!(place_malloc(&copies), STEPPED_ENTRY);
    assert_eq!(place_free(&reads), at(4, 1, Stepping::EmulatedPush), "free's return is not probed");
}

#[test]
fn a_realigned_or_popped_stack_leaves_only_the_entry() {
    let realigned = [
        0x48, 0x83, 0xe4, 0xf0, // and rsp,-16
        0x48, 0x85, 0xff, //       test rdi,rdi
        0x74, 0x00, //             je +0
        0xc3, //                   ret
    ];
    let popped = [
        0x59, //             pop rcx           (the return address)
        0x48, 0x85, 0xff, // test rdi,rdi
        0x74, 0x00, //       je +0
        0xc3, //             ret
    ];
    assert_eq!(place_free(&realigned), STEPPED_ENTRY);
    assert_eq!(place_free(&popped), STEPPED_ENTRY);
}

#[test]
fn a_stack_frame_too_deep_for_the_cookie_is_left_alone() {
    let code = [
        0x48, 0x81, 0xec, 0x00, 0x20, 0x00, 0x00, // sub rsp,0x2000
        0x74, 0x00, //                               je +0
        0xc3, //                                     ret
    ];
    assert_eq!(place_free(&code), STEPPED_ENTRY);
}

#[test]
fn an_indirect_jump_may_lead_anywhere_but_not_through_a_fixed_slot() {
    let computed = [
        0x48, 0x85, 0xff, // test rdi,rdi
        0x74, 0x02, //       je +2
        0xff, 0xe0, //       jmp rax
        0xc3, //             ret
    ];
    let fixed = [
        0x48, 0x85, 0xff, //                   test rdi,rdi
        0x74, 0x06, //                         je +6
        0xff, 0x25, 0x00, 0x10, 0x00, 0x00, // jmp [rip+0x1000]
        0xc3, //                               ret
    ];
    assert_eq!(place_free(&computed), STEPPED_ENTRY);
    assert_eq!(place_free(&fixed), at(3, 1, Stepping::EmulatedBranch));
}

#[test]
fn a_call_can_carry_the_probe_but_nothing_behind_it_can() {
    let code = [
        0x48, 0x85, 0xff, //             test rdi,rdi
        0xe8, 0x00, 0x00, 0x00, 0x00, // call +0
        0x74, 0x00, //                   je +0
        0xc3, //                         ret
    ];
    // The target of the call is the next instruction: a branch into the function, but not into the block.
    assert_eq!(place_free(&code), at(3, 1, Stepping::EmulatedPush));
}

#[test]
fn the_five_byte_no_op_is_as_good_as_a_branch() {
    let code = [
        0x53, //                         push rbx
        0x0f, 0x1f, 0x44, 0x00, 0x00, // nop DWORD PTR [rax+rax*1+0x0]
        0x5b, //                         pop rbx
        0xc3, //                         ret
    ];
    assert_eq!(place_free(&code), at(1, 2, Stepping::EmulatedBranch));
    assert_eq!(place_malloc(&code), at(0, 1, Stepping::EmulatedPush));
}

#[test]
fn a_locked_first_instruction_is_avoided_where_possible() {
    let avoidable = [
        0xf0, 0xff, 0x07, // lock inc DWORD PTR [rdi]
        0x74, 0x00, //       je +0
        0xc3, //             ret
    ];
    let inevitable = [
        0xf0, 0xff, 0x07, // lock inc DWORD PTR [rdi]
        0xc3, //             ret
    ];
    assert_eq!(place_free(&avoidable), at(3, 1, Stepping::EmulatedBranch));
    assert_eq!(place_free(&inevitable), STEPPED_ENTRY);
}

#[test]
fn bytes_that_are_no_instruction_leave_only_the_entry() {
    let at_once = [
        0x06, //       no instruction in 64-bit mode
        0x74, 0x00, // je +0
        0xc3, //       ret
    ];
    let behind_the_site = [
        0x53, // push rbx
        0x06, // no instruction in 64-bit mode
        0xc3, // ret
    ];
    let behind_the_block = [
        0x48, 0x85, 0xff, // test rdi,rdi
        0x74, 0x01, //       je +1
        0xc3, //             ret
        0x06, //             no instruction in 64-bit mode
    ];
    assert_eq!(place_free(&at_once), STEPPED_ENTRY);
    assert_eq!(place_free(&behind_the_site), at(0, 1, Stepping::EmulatedPush));
    assert_eq!(place_free(&behind_the_block), STEPPED_ENTRY);
}

#[test]
fn a_block_that_runs_past_the_functions_end_leaves_only_the_entry() {
    let open = [
        0x48, 0x85, 0xff, // test rdi,rdi
        0x53, //             push rbx
    ];
    let cut = [
        0x48, 0x85, 0xff, // test rdi,rdi
        0x53, //             push rbx
        0x0f, 0x84, //       je, cut off
    ];
    assert_eq!(place_free(&open), STEPPED_ENTRY);
    assert_eq!(place_free(&cut), STEPPED_ENTRY);
    assert_eq!(place_free(&[]), STEPPED_ENTRY);
}

#[test]
fn a_function_of_unknown_size_is_probed_at_its_entry() {
    let code = [
        0x48, 0x85, 0xff, // test rdi,rdi
        0x74, 0x00, //       je +0
        0xc3, //             ret
    ];
    assert_eq!(place(Body::Start(&code), Role::Free, FREE, u64::MAX), STEPPED_ENTRY);
}

proptest! {
    #[test]
    fn any_bytes_get_a_site_within_them_or_the_entry(
        code in prop::collection::vec(any::<u8>(), 0..64), sealed: u64, frees: bool,
    ) {
        let (role, signature) = if frees { (Role::Free, FREE) } else { (Role::Allocate, MALLOC) };
        let placement = place(Body::Whole(&code), role, signature, sealed);
        prop_assert!(placement.delta == 0 || placement.delta < code.len() as u64);
        prop_assert!(placement.delta == 0 || placement.delta < sealed);
        prop_assert!(placement.delta == 0 || placement.stepping != Stepping::SingleStep);
        prop_assert!(frees || placement.cfa_words == 1);
    }

    #[test]
    fn likely_prologues_get_a_site_within_them_or_the_entry(
        parts in prop::collection::vec(prop::sample::select(PROLOGUE_PARTS), 0..12), frees: bool,
    ) {
        let code: Vec<u8> = parts.concat();
        let (role, signature) = if frees { (Role::Free, FREE) } else { (Role::Allocate, MALLOC) };
        let placement = place(Body::Whole(&code), role, signature, u64::MAX);
        prop_assert!(placement.delta == 0 || placement.delta < code.len() as u64);
        prop_assert!(frees || placement.cfa_words == 1);
    }
}

/// Instructions of prologues, and some that end or break them.
const PROLOGUE_PARTS: &[&[u8]] = &[
    &[0xf3, 0x0f, 0x1e, 0xfa],                               // endbr64
    &[0x55],                                                 // push rbp
    &[0x41, 0x54],                                           // push r12
    &[0x5b],                                                 // pop rbx
    &[0x48, 0x89, 0xe5],                                     // mov rbp,rsp
    &[0x48, 0x83, 0xec, 0x18],                               // sub rsp,0x18
    &[0x48, 0x83, 0xc4, 0x18],                               // add rsp,0x18
    &[0x48, 0x85, 0xff],                                     // test rdi,rdi
    &[0x48, 0x89, 0xfb],                                     // mov rbx,rdi
    &[0x31, 0xff],                                           // xor edi,edi
    &[0x74, 0x02],                                           // je +2
    &[0x75, 0xfa],                                           // jne -6
    &[0xe8, 0x00, 0x00, 0x00, 0x00],                         // call +0
    &[0xff, 0xe0],                                           // jmp rax
    &[0x64, 0x48, 0x8b, 0x04, 0x25, 0x28, 0x00, 0x00, 0x00], // mov rax,fs:0x28
    &[0xc3],                                                 // ret
];
