//! Tests of values in a function's stack frame, and of other code that could write there.

use super::*;

/// Saves `rbp` and `rbx`, keeps the size in `rbx` across a call, with the given code before and after the call, and the called
/// function at the end.
fn framed(before: &[u8], after: &[u8]) -> Vec<u8> {
    let save = [0x55, 0x53, 0x48, 0x89, 0xfb]; // push rbp; push rbx; mov rbx,rdi
    let restore = [0x48, 0x85, 0xc0, 0x74, 0x00, 0x5b, 0x5d, 0xc3]; // test rax,rax; je on; pop rbx; pop rbp; ret
    let distance = u32::try_from(after.len() + restore.len()).unwrap();
    let call = [&[0xe8][..], &distance.to_le_bytes()].concat();
    [&save, before, &call, after, &restore, &[0xc3]].concat()
}

fn assert_no_site(before: &[u8], after: &[u8], why: &str) {
    assert_eq!(find_in(&framed(before, after), &[]), Err(NoCut::NoSites), "{why}");
}

const CLOBBER_FRAME_POINTER: [u8; 2] = [0x31, 0xed]; // xor ebp,ebp

#[test]
fn a_frame_that_nobody_writes_to_keeps_the_frame_pointer() {
    let sites = find_in(&framed(&CLOBBER_FRAME_POINTER, &[]), &[]).unwrap();

    assert_eq!((sites.len(), sites[0].inside.size, sites[0].inside.frame_pointer_words), (1, RBX, 2));
}

#[test]
fn a_write_with_an_index_may_go_anywhere_in_the_frame() {
    let write = [0x48, 0x89, 0x14, 0xc4]; // mov [rsp+rax*8],rdx
    assert_no_site(&[&CLOBBER_FRAME_POINTER[..], &write].concat(), &[], "by the stack pointer");

    // mov rbp,rsp; mov [rax+rbp],rdx; xor ebp,ebp
    let write = [0x48, 0x89, 0xe5, 0x48, 0x89, 0x14, 0x28, 0x31, 0xed];
    assert_no_site(&write, &[], "by a frame pointer that is the index");
}

#[test]
fn an_address_that_is_computed_from_the_stack_pointer_may_be_anywhere_in_the_frame() {
    let cases: [(&[u8], &str); 5] = [
        (&[0x48, 0x8d, 0x3c, 0xc4, 0x48, 0x89, 0x17], "lea rdi,[rsp+rax*8]; mov [rdi],rdx"),
        (&[0x48, 0x01, 0xe7, 0x48, 0x89, 0x17], "add rdi,rsp; mov [rdi],rdx"),
        (&[0x8d, 0x7c, 0x24, 0x08, 0x48, 0x89, 0x17], "lea edi,[rsp+8]; mov [rdi],rdx"),
        (&[0x48, 0x87, 0xe8, 0x48, 0x89, 0x10, 0x48, 0x87, 0xe8], "xchg rax,rbp"),
        (&[0x48, 0x8d, 0x3c, 0xc4], "lea rdi,[rsp+rax*8], and the function that is called writes"),
    ];
    for (before, why) in cases {
        // rbp contains the stack pointer, for the case that uses it.
        let before = [&[0x48, 0x89, 0xe5][..], before, &CLOBBER_FRAME_POINTER].concat();
        assert_no_site(&before, &[], why);
    }
}

#[test]
fn an_address_of_the_frame_in_memory_is_known_to_all() {
    let store = [0x48, 0x89, 0x26]; // mov [rsi],rsp
    assert_no_site(&[&store[..], &CLOBBER_FRAME_POINTER].concat(), &[], "the stack pointer");

    let store = [0x48, 0x89, 0xe5, 0x48, 0x89, 0x2e]; // mov rbp,rsp; mov [rsi],rbp
    assert_no_site(&[&store[..], &CLOBBER_FRAME_POINTER].concat(), &[], "the frame pointer");
}

#[test]
fn a_frame_pointer_on_one_path_only_may_be_written_by_on_both() {
    let before = [
        0x85, 0xf6, //             test esi,esi
        0x75, 0x05, //             jne on
        0x48, 0x89, 0xfd, //       mov rbp,rdi
        0xeb, 0x03, //             jmp over
        0x48, 0x89, 0xe5, //   on: mov rbp,rsp
        0x48, 0x89, 0x55, 0x08, // over: mov [rbp+8],rdx
        0x31, 0xed, //             xor ebp,ebp
    ];

    assert_no_site(&before, &[], "the saved frame pointer is at [rsp+8]");
}

#[test]
fn what_the_caller_left_in_a_register_may_lead_to_the_stack() {
    let write = [0x49, 0x89, 0x14, 0x24]; // mov [r12],rdx
    assert_no_site(&[&write[..], &CLOBBER_FRAME_POINTER].concat(), &[], "no argument is in r12");

    let write = [0x48, 0x89, 0x16]; // mov [rsi],rdx
    assert!(find_in(&framed(&[&write[..], &CLOBBER_FRAME_POINTER].concat(), &[]), &[]).is_ok());
}

#[test]
fn a_function_that_changes_its_return_address_is_left_alone() {
    let write = [0x48, 0x89, 0x54, 0x24, 0x10]; // mov [rsp+16],rdx

    assert_eq!(find_in(&framed(&write, &[]), &[]), Err(NoCut::Frame));
}

#[test]
fn a_function_whose_stack_pointer_is_not_known_is_left_alone() {
    let align = [0x48, 0x89, 0xe5, 0x48, 0x83, 0xe4, 0xf0]; // mov rbp,rsp; and rsp,-16
    let restore = [0x48, 0x89, 0xec]; // mov rsp,rbp

    assert_eq!(find_in(&framed(&align, &restore), &[]), Err(NoCut::Frame));
}

#[test]
fn instructions_that_are_not_understood_are_not_gone_past() {
    let cases: [(&[u8], &str); 7] = [
        (&[0xf3, 0x48, 0xab], "rep stosq"),
        (&[0x0f, 0x05], "syscall"),
        (&[0x0f, 0x29, 0x04, 0x24], "movaps [rsp],xmm0"),
        (&[0x84, 0xe4], "test ah,ah"),
        (&[0xe2, 0x00], "loop"),
        (&[0x67, 0x89, 0x10], "mov [eax],edx"),
        (&[0x8f, 0x44, 0x24, 0x08], "pop [rsp+8]"),
    ];
    for (before, why) in cases {
        assert_eq!(find_in(&framed(before, &[]), &[]), Err(NoCut::NotUnderstood), "{why}");
    }
    // A return that pops its arguments does not belong to a C function either.
    let mut code = framed(&[], &[]);
    code.truncate(code.len() - 2);
    code.extend([0xc2, 0x08, 0x00]);
    assert_eq!(find_in(&code, &[]), Err(NoCut::NotUnderstood), "ret 8");
}
