//! Tests of other entry points into a function, and of control flow out of it.

use super::*;
use crate::allocators::symbols::Described;

/// Bytes of [`KEEPS_SIZE`] that belong to the function itself.
const OWN: usize = 16;

/// The sites with this code after the function.
fn find_beside(others: &[u8]) -> Result<Vec<Site>, NoCut> {
    find_in_first(OWN, &[&KEEPS_SIZE[..], others].concat(), &[])
}

#[test]
fn jumps_and_calls_into_its_middle_from_elsewhere_are_entries() {
    let cases: [(&[u8], &str); 7] = [
        (&[0xe9, 0xf3, 0xff, 0xff, 0xff], "jmp 9"),
        (&[0xe8, 0xf3, 0xff, 0xff, 0xff], "call 9"),
        (&[0x0f, 0x84, 0xf2, 0xff, 0xff, 0xff], "je 9"),
        (&[0xeb, 0xf6], "a short jmp 9"),
        (&[0x7f, 0xf6], "a short jg 9"),
        (&[0xe3, 0xf6], "jrcxz 9"),
        (&[0xc7, 0xf8, 0xf2, 0xff, 0xff, 0xff], "xbegin 9"),
    ];
    for (others, why) in cases {
        assert_eq!(find_beside(others), Err(NoCut::NotSealed), "{why}");
    }
    assert!(find_beside(&[0xeb, 0xed]).is_ok(), "a jump to the entry is a call");
    assert!(find_beside(&[0xeb, 0x05]).is_ok(), "a jump elsewhere is none");
}

#[test]
fn a_short_jump_before_it_is_an_entry() {
    let function = KEEPS_SIZE;
    let elf = test_elf::elf(&[&[0xeb, 0x02, 0x90, 0x90][..], &function].concat(), &[]);
    let image = image(&elf);
    let follower = Follower::new(&image);
    let (accounted, begin) = (HashSet::new(), CODE_ADDRESS + 4);
    let found = |described| {
        let mut prover = Prover::new(&image, &follower, &accounted);
        prover.surroundings.described = Some(described);
        prover.find(&(begin..begin + OWN as u64), families::SIZE_FIRST)
    };
    let described = |addresses| Described { addresses, catches_exceptions: false };

    assert!(found(vec![]).is_ok(), "it leads to the entry");
    let other = described(CODE_ADDRESS..begin);
    assert!(found(vec![other.clone()]).is_ok());
    let own = described(begin..begin + OWN as u64);
    assert!(found(vec![other.clone(), own.clone()]).is_ok());
    let catches = Described { catches_exceptions: true, ..own };
    assert_eq!(found(vec![catches]), Err(NoCut::NotSealed), "exceptions come back into its middle");
    let longer = described(begin - 2..begin + OWN as u64);
    assert_eq!(found(vec![longer]), Err(NoCut::NotSealed), "its beginning is elsewhere");
}

#[test]
fn bytes_in_an_instruction_of_a_known_neighbour_are_no_jump() {
    // mov eax,0x0000f5eb: its second byte would be a short jump to 9.
    let neighbour = [0xb8, 0xeb, 0xf5, 0x00, 0x00];
    let elf = test_elf::elf(&[&KEEPS_SIZE[..], &neighbour].concat(), &[]);
    let image = image(&elf);
    let (follower, accounted) = (Follower::new(&image), HashSet::new());
    let mut prover = Prover::new(&image, &follower, &accounted);
    let own = CODE_ADDRESS..CODE_ADDRESS + OWN as u64;

    assert_eq!(prover.find(&own, families::SIZE_FIRST), Err(NoCut::NotSealed));
    let begin = CODE_ADDRESS + 17;
    prover.surroundings.described =
        Some(vec![Described { addresses: begin..begin + 5, catches_exceptions: false }]);
    assert!(prover.find(&own, families::SIZE_FIRST).is_ok());
}

#[test]
fn an_address_in_its_middle_is_an_entry() {
    let word = |address: u64| {
        let mut others = vec![0x90; 7];
        others.extend(address.to_le_bytes());
        find_beside(&others)
    };
    assert_eq!(word(CODE_ADDRESS + 9), Err(NoCut::NotSealed));
    assert!(word(CODE_ADDRESS).is_ok(), "of its entry");
    assert!(word(CODE_ADDRESS + 16).is_ok(), "behind its end");

    let lea = |distance: i32| find_beside(&[&[0x48, 0x8d, 0x05][..], &distance.to_le_bytes()].concat());
    assert_eq!(lea(9 - 24), Err(NoCut::NotSealed), "lea rax,[rip+9]");
    assert!(lea(-24).is_ok(), "of its entry");
}

#[test]
fn a_table_of_relative_addresses_is_an_entry() {
    // At 17: lea rdx,[rip+24]. At 24: a table of two entries.
    let table = |entries: [i32; 2]| {
        let mut others = vec![0x48, 0x8d, 0x15, 0x00, 0x00, 0x00, 0x00];
        others.extend(entries.into_iter().flat_map(i32::to_le_bytes));
        others.push(0x90);
        find_beside(&others)
    };

    assert_eq!(table([-7, 9 - 24]), Err(NoCut::NotSealed), "the second is 9");
    assert!(table([-7, -24]).is_ok(), "the second is the entry");
    assert!(table([0x0100_0000, 9 - 24]).is_ok(), "the first is no code: it is no table");
}

#[test]
fn a_function_that_calls_its_own_middle_is_left_alone() {
    let mut code = KEEPS_SIZE;
    code[5] = 5; // call 14

    assert_eq!(find_in(&code, &[]), Err(NoCut::NotSealed));
}

#[test]
fn a_function_that_goes_on_in_another_one_is_left_alone() {
    let mut code = KEEPS_SIZE.to_vec();
    code[13] = 4; // je 18
    code.extend([0x90, 0x5b, 0xc3]); // 17 nop; 18 pop rbx; ret

    assert_eq!(find_in_first(OWN, &code, &[]), Err(NoCut::NotSealed), "its cold part may be shared");
}

#[test]
fn instructions_that_overlap_are_left_alone() {
    let code = [
        0x53, //                         0 push rbx
        0x48, 0x89, 0xfb, //             1 mov rbx,rdi
        0x85, 0xf6, //                   4 test esi,esi
        0x74, 0x01, //                   6 je 9
        0xf0, //                         8 lock
        0xff, 0x02, //                   9 inc dword [rdx]
        0xe8, 0x07, 0x00, 0x00, 0x00, //11 call 23
        0x48, 0x85, 0xc0, //            16 test rax,rax
        0x74, 0x00, //                  19 je 21
        0x5b, //                        21 pop rbx
        0xc3, //                        22 ret
        0xc3, //                        23 ret
    ];

    assert_eq!(find_in(&code, &[]), Err(NoCut::NotSealed));
}
