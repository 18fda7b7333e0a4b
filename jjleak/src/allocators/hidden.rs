//! Finds allocators for which the file has no symbols, by the messages that they print.

use memchr::memmem::Finder;

use super::{Unfollowed, families, symbols::Image};

/// Prefixes of each allocator's messages, which are C strings or begin C strings. The first character is stored separately, to
/// keep the messages out of jjleak's own executable.
const MESSAGES: &[(&str, u8, &str)] = &[
    // In static programs: the shared C library exports its functions.
    ("glibc", b'f', "ree(): invalid pointer"),
    ("jemalloc", b'<', "jemalloc>: "),
    ("mimalloc", b'm', "imalloc: warning: "),
    ("tcmalloc", b't', "cmalloc: large alloc"),
];

/// Length in bytes that no message exceeds, with the byte before it.
const MAX_MESSAGE_BYTES: usize = 64;

/// The allocators in a file besides those already `found`. An allocator of an unknown family among the found may be the one with
/// the messages; then none is returned.
pub(super) fn hidden(image: &Image<'_>, found: &[&str]) -> Vec<Unfollowed> {
    if found.contains(&families::UNKNOWN) {
        return Vec::new();
    }
    let mut missing: Vec<_> = MESSAGES
        .iter()
        .filter(|(family, ..)| !found.contains(family))
        .map(|&(family, first, rest)| (family, first, Finder::new(rest)))
        .collect();
    let mut hidden = Vec::new();
    image.visit_constants(MAX_MESSAGE_BYTES, |is_start, constants| {
        let is_held =
            |(_, first, finder): &mut (_, u8, Finder<'_>)| begins_string(constants, is_start, *first, finder);
        hidden.extend(missing.extract_if(.., is_held).map(|(family, ..)| Unfollowed::Hidden(family)));
    });
    hidden
}

/// Returns true if a C string begins with `first` and the text of the finder: programs that only mention an allocator contain the
/// text elsewhere. `is_start` is true if a string begins with the constants.
fn begins_string(constants: &[u8], is_start: bool, first: u8, finder: &Finder<'_>) -> bool {
    let begins = |at: usize| {
        constants
            .get(..at)
            .is_some_and(|before| is_start && before == [first] || before.ends_with(&[0, first]))
    };
    finder.find_iter(constants).any(begins)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocators::test_elf;

    #[test]
    fn a_message_is_one_where_a_string_begins_with_it() {
        let begins = |constants: &[u8]| begins_string(constants, true, b'<', &Finder::new("message>: "));
        assert!(begins(b"<message>: out of memory"));
        assert!(begins(b"other\0<message>: "));
        assert!(!begins(b"look for \"<message>: \"\0") && !begins(b"message>: "));
        assert!(
            !begins_string(b"<message>: ", false, b'<', &Finder::new("message>: ")),
            "what comes before is unknown"
        );
    }

    #[test]
    fn messages_are_found_across_the_pieces_of_a_large_file() {
        let rest = MESSAGES.iter().map(|(_, _, rest)| rest.len()).max();
        assert!(rest.is_some_and(|rest| rest + 2 <= MAX_MESSAGE_BYTES));
    }

    #[test]
    fn overlapping_sections_are_not_all_searched() {
        let mut file = test_elf::elf(&[0xc3], &[]);
        let length = file.len() as u64;
        for _ in 0..9 {
            // SHT_PROGBITS, SHF_ALLOC; the whole file.
            file.extend([0, 0, 0, 0, 1, 0, 0, 0]);
            file.extend([2, 0, 0, length, 0, 0, 0].map(u64::to_le_bytes).concat());
        }
        file[60] = 3 + 9; // e_shnum
        let image = Image::parse(&file, None, "", &[], |_| Vec::new()).unwrap();
        let mut bytes = 0;
        image.visit_constants(0, |_, constants| bytes += constants.len());
        assert!((1..=file.len()).contains(&bytes), "{bytes} of {}", file.len());
    }
}
