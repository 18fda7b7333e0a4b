//! Keys, from what terminals send for them: ECMA-48, UTF-8, and the sequences that xterm and its kin have for the other keys.
//! Pure.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

const ESCAPE: u8 = 0x1b;
/// What no key is as long as. Where something is, it is not for us, and its beginning is not kept.
const LONGEST: usize = 64;

/// Tells keys from bytes, however these are divided.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    /// A key whose end has not come yet.
    begun: Vec<u8>,
}

/// What bytes begin with.
#[derive(Debug, PartialEq, Eq)]
enum First {
    /// A key, in so many bytes.
    Key(KeyEvent, usize),
    /// So many bytes that are no key that we know.
    Nothing(usize),
    /// What has no end yet.
    Beginning,
}

impl Decoder {
    /// The keys in what was read at once; `has_more` if the next read goes on where it ends. A key that has begun in it ends there.
    pub(super) fn decode(&mut self, read: &[u8], has_more: bool) -> Vec<KeyEvent> {
        self.begun.extend_from_slice(read);
        let (mut keys, mut at) = (Vec::new(), 0);
        while at < self.begun.len() {
            let rest = &self.begun[at..];
            if has_more && rest == [ESCAPE] {
                break;
            }
            at += match first(rest) {
                First::Key(key, length) => {
                    keys.push(key);
                    length
                }
                First::Nothing(length) => length,
                First::Beginning if self.begun.len() - at > LONGEST => LONGEST,
                First::Beginning => break,
            };
        }
        self.begun.drain(..at);
        keys
    }
}

fn key(code: KeyCode, modifiers: KeyModifiers) -> KeyEvent {
    KeyEvent::new(code, modifiers)
}

/// What bytes, at least one, begin with.
fn first(bytes: &[u8]) -> First {
    let plain = |code| First::Key(key(code, KeyModifiers::NONE), 1);
    match bytes[0] {
        ESCAPE => escaped(bytes),
        b'\r' => plain(KeyCode::Enter),
        b'\t' => plain(KeyCode::Tab),
        0x7f => plain(KeyCode::Backspace),
        letter @ 1..=26 => {
            let letter = char::from(b'a' + letter - 1);
            First::Key(key(KeyCode::Char(letter), KeyModifiers::CONTROL), 1)
        }
        0..=31 => First::Nothing(1),
        _ => character(bytes),
    }
}

/// A character in UTF-8.
fn character(bytes: &[u8]) -> First {
    /// The longest character.
    const LONGEST: usize = 4;
    let bytes = &bytes[..bytes.len().min(LONGEST)];
    let (valid, error) = match str::from_utf8(bytes) {
        Ok(text) => (text, None),
        Err(error) => (str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(), Some(error)),
    };
    match (valid.chars().next(), error.and_then(|error| error.error_len())) {
        (Some(character), _) => {
            First::Key(key(KeyCode::Char(character), KeyModifiers::NONE), character.len_utf8())
        }
        (None, Some(wrong)) => First::Nothing(wrong),
        (None, None) => First::Beginning,
    }
}

/// What begins with the escape character: the key itself, if nothing came with it.
fn escaped(bytes: &[u8]) -> First {
    let escape = First::Key(key(KeyCode::Esc, KeyModifiers::NONE), 1);
    match bytes[1..] {
        [] | [ESCAPE, ..] => escape,
        [b'[', ..] => control_sequence(bytes),
        [b'O'] => First::Beginning,
        [b'O', last, ..] => {
            function(last).map_or(First::Nothing(3), |code| First::Key(key(code, KeyModifiers::NONE), 3))
        }
        // With Alt.
        ref others => match first(others) {
            First::Key(KeyEvent { code, modifiers, .. }, length) => {
                First::Key(key(code, modifiers | KeyModifiers::ALT), length + 1)
            }
            First::Nothing(length) => First::Nothing(length + 1),
            First::Beginning => First::Beginning,
        },
    }
}

/// ECMA-48, 5.4: parameters, intermediate bytes, and one that ends it and tells what it is.
fn control_sequence(bytes: &[u8]) -> First {
    let body = &bytes[2..];
    // The Linux console's first function keys.
    if let [b'[', rest @ ..] = body {
        let code = match rest {
            [] => return First::Beginning,
            [number @ b'A'..=b'E', ..] => KeyCode::F(1 + number - b'A'),
            [b' '..=b'~', ..] => return First::Nothing(4),
            [..] => return First::Nothing(3),
        };
        return First::Key(key(code, KeyModifiers::NONE), 4);
    }
    let Some(end) = body.iter().position(|byte| !(0x20..0x40).contains(byte)) else {
        return First::Beginning;
    };
    let length = 2 + end + 1;
    // Something else has come between: that is looked at for itself.
    if !(0x40..0x7f).contains(&body[end]) {
        return First::Nothing(length - 1);
    }
    let mut parameters = body[..end].split(|byte| *byte == b';').map(number);
    let (first, second) = (parameters.next().unwrap_or(Some(1)), parameters.next().unwrap_or(Some(1)));
    let code = match (body[end], first) {
        (b'~', Some(number)) => numbered(number),
        (last, Some(1)) => function(last),
        _ => None,
    };
    match code.zip(second) {
        Some((code, held)) => First::Key(key(code, modifiers(held)), length),
        None => First::Nothing(length),
    }
}

/// A parameter: 1 if it is left out; `None` for what no key has.
fn number(digits: &[u8]) -> Option<u8> {
    if digits.is_empty() { Some(1) } else { str::from_utf8(digits).ok()?.parse().ok() }
}

/// Keys that are told by a letter.
const fn function(letter: u8) -> Option<KeyCode> {
    Some(match letter {
        b'A' => KeyCode::Up,
        b'B' => KeyCode::Down,
        b'C' => KeyCode::Right,
        b'D' => KeyCode::Left,
        b'F' => KeyCode::End,
        b'H' => KeyCode::Home,
        // The keypad's.
        b'M' => KeyCode::Enter,
        b'P'..=b'S' => KeyCode::F(1 + letter - b'P'),
        _ => return None,
    })
}

/// Keys that are told by a number.
const fn numbered(number: u8) -> Option<KeyCode> {
    Some(match number {
        1 | 7 => KeyCode::Home,
        2 => KeyCode::Insert,
        3 => KeyCode::Delete,
        4 | 8 => KeyCode::End,
        5 => KeyCode::PageUp,
        6 => KeyCode::PageDown,
        11..=15 => KeyCode::F(number - 10),
        17..=21 => KeyCode::F(number - 11),
        23 | 24 => KeyCode::F(number - 12),
        _ => return None,
    })
}

/// What is held down beside, as xterm tells it: one more than the sum.
fn modifiers(number: u8) -> KeyModifiers {
    let held = number.saturating_sub(1);
    let all = [(1, KeyModifiers::SHIFT), (2, KeyModifiers::ALT), (4, KeyModifiers::CONTROL)];
    all.into_iter().filter(|(bit, _)| held & bit != 0).fold(KeyModifiers::NONE, |sum, (_, one)| sum | one)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Keys with nothing held down.
    fn plain(codes: &[KeyCode]) -> Vec<KeyEvent> {
        codes.iter().map(|code| key(*code, KeyModifiers::NONE)).collect()
    }

    fn decoded(read: &[u8]) -> Vec<KeyEvent> {
        Decoder::default().decode(read, false)
    }

    #[test]
    fn keys_are_what_terminals_send_for_them() {
        for (bytes, codes) in [
            ("qG/ü漢\u{1f600}", &['q', 'G', '/', 'ü', '漢', '\u{1f600}'].map(KeyCode::Char)[..]),
            ("\r\t\u{7f}\u{1b}", &[KeyCode::Enter, KeyCode::Tab, KeyCode::Backspace, KeyCode::Esc]),
            (
                "\u{1b}[A\u{1b}[B\u{1b}[C\u{1b}[D",
                &[KeyCode::Up, KeyCode::Down, KeyCode::Right, KeyCode::Left],
            ),
            (
                "\u{1b}OA\u{1b}OB\u{1b}OC\u{1b}OD",
                &[KeyCode::Up, KeyCode::Down, KeyCode::Right, KeyCode::Left],
            ),
            ("\u{1b}[H\u{1b}[F\u{1b}OH\u{1b}OF", &[KeyCode::Home, KeyCode::End, KeyCode::Home, KeyCode::End]),
            (
                "\u{1b}[1~\u{1b}[4~\u{1b}[7~\u{1b}[8~",
                &[KeyCode::Home, KeyCode::End, KeyCode::Home, KeyCode::End],
            ),
            ("\u{1b}[5~\u{1b}[6~\u{1b}[3~", &[KeyCode::PageUp, KeyCode::PageDown, KeyCode::Delete]),
            ("\u{1b}OP\u{1b}[11~\u{1b}[[A\u{1b}[24~", &[1, 1, 1, 12].map(KeyCode::F)),
            ("\u{1b}\u{1b}", &[KeyCode::Esc, KeyCode::Esc]),
        ] {
            assert_eq!(decoded(bytes.as_bytes()), plain(codes), "{bytes:?}");
        }
        let control = |letter| key(KeyCode::Char(letter), KeyModifiers::CONTROL);
        assert_eq!(decoded(b"\x03\x1a\x0c\x15"), ['c', 'z', 'l', 'u'].map(control));
        assert_eq!(decoded(b"\x1b[1;5A"), [key(KeyCode::Up, KeyModifiers::CONTROL)]);
        assert_eq!(decoded(b"\x1b[5;2~"), [key(KeyCode::PageUp, KeyModifiers::SHIFT)]);
        assert_eq!(decoded(b"\x1bx"), [key(KeyCode::Char('x'), KeyModifiers::ALT)]);
    }

    #[test]
    fn what_is_no_key_is_passed_over_and_keys_behind_it_are_not() {
        // Focus, a mouse, an answer, a paste's begin, unknown ones, and what is not UTF-8.
        for bytes in [
            &b"\x1b[I"[..],
            b"\x1b[<0;10;20M",
            b"\x1b[?64;1;2c",
            b"\x1b[200~",
            b"\x1b[99999;99999R",
            b"\x1bOz",
            b"\x1b[[z",
            b"\xff",
            b"\xe2\x28"[..1].as_ref(),
            b"\x00",
            b"\x1b[12\x01"[..4].as_ref(),
        ] {
            let keys = decoded(&[bytes, b"\x03"].concat());
            assert_eq!(keys, [key(KeyCode::Char('c'), KeyModifiers::CONTROL)], "{bytes:?}");
        }
    }

    #[test]
    fn a_beginning_without_an_end_is_not_kept_for_ever() {
        let mut decoder = Decoder::default();
        for _ in 0..1000 {
            decoder.decode(b"\x1b[1;1;1;1;1", false);
        }
        assert!(decoder.begun.len() <= 2 * LONGEST, "{}", decoder.begun.len());
        assert_eq!(
            decoder.decode(b"\x03", false).last(),
            Some(&key(KeyCode::Char('c'), KeyModifiers::CONTROL))
        );
    }

    proptest! {
        #[test]
        fn whatever_comes_is_decoded_to_its_end(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..20)) {
            let mut decoder = Decoder::default();
            for piece in pieces {
                let keys = decoder.decode(&piece, false);
                prop_assert!(keys.len() <= piece.len() + LONGEST);
                prop_assert!(decoder.begun.len() <= LONGEST);
            }
            prop_assert!(decoder.decode(b"\r\r", false).contains(&key(KeyCode::Enter, KeyModifiers::NONE)));
        }

        #[test]
        fn keys_are_the_same_however_they_come(text in "([a-zü漢\r]|\u{1b}\\[A|\u{1b}\\[5;2~|\u{1b}OP){0,20}", at in 0..40_usize) {
            let bytes = text.as_bytes();
            let (one, other) = bytes.split_at(at.min(bytes.len()));
            let mut decoder = Decoder::default();
            let mut keys = decoder.decode(one, true);
            keys.extend(decoder.decode(other, false));
            prop_assert_eq!(keys, decoded(bytes));
        }
    }
}
