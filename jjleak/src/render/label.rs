//! Labels of frames.

use std::borrow::Cow;

use crate::profile::Frame;
pub(crate) use crate::profile::NO_STACK;

/// Name of the function, or its address and module if unknown; name of the thread if the frame represents one.
pub(crate) fn label(frame: &Frame) -> Cow<'_, str> {
    if let Some(thread) = frame.thread() {
        Cow::Owned(printable(&thread.to_string()).into_owned())
    } else if frame.symbol.is_empty() {
        Cow::Owned(format!("{:#x} [{}]", frame.address, module(frame).unwrap_or("unknown".into())))
    } else {
        printable(&frame.symbol)
    }
}

/// File name of the frame's module; `None` if there is none.
pub(crate) fn module(frame: &Frame) -> Option<Cow<'_, str>> {
    let name = frame.module.rsplit('/').next().unwrap_or_default();
    (!name.is_empty()).then(|| printable(name))
}

/// The text without characters that end a line, control a terminal, change the direction of the text that follows, or are invalid
/// in XML. The profiled process chooses names freely.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let hostile = |c: char| {
        c.is_control()
            || is_bidirectional(c)
            || matches!(c, '\u{2028}' | '\u{2029}' | '\u{fffe}' | '\u{ffff}')
    };
    if text.contains(hostile) { Cow::Owned(text.replace(hostile, "\u{fffd}")) } else { Cow::Borrowed(text) }
}

/// Returns true for the controls of Unicode's bidirectional algorithm (UAX #9), which can show a name as another one.
const fn is_bidirectional(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Thread;

    #[test]
    fn functions_go_by_name_and_unknown_code_by_address_and_module() {
        let known = Frame { symbol: "main".into(), module: "/usr/bin/app".into(), ..Frame::default() };
        let stripped = Frame { symbol: String::new(), address: 0x7f00_1234, ..known.clone() };
        let unmapped = Frame { module: String::new(), ..stripped.clone() };
        assert_eq!(label(&known), "main");
        assert_eq!(label(&stripped), "0x7f001234 [app]");
        assert_eq!(label(&unmapped), "0x7f001234 [unknown]");
        let thread = Thread { number: 42, name: "worker\n1".into(), nth: 1 };
        assert_eq!(label(&Frame::of_thread(&thread)), "worker\u{fffd}1 (tid 42)");
        assert_eq!(label(&Frame::of_thread(&Thread { nth: 3, ..thread })), "worker\u{fffd}1 (tid 42, no. 3)");
    }

    #[test]
    fn names_cannot_steer_the_terminal() {
        assert_eq!(printable("a\u{1b}[2J\nb"), "a\u{fffd}[2J\u{fffd}b");
    }

    #[test]
    fn names_cannot_change_the_direction_of_text() {
        assert_eq!(printable("main\u{202e}kael\u{2069}"), "main\u{fffd}kael\u{fffd}");
        assert_eq!(printable("\u{5e9}\u{5dc}\u{5d5}\u{5dd}"), "\u{5e9}\u{5dc}\u{5d5}\u{5dd}", "letters stay");
    }
}
