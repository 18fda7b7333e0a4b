//! Errors with their causes, on one line.

use std::error::Error;

/// An error and its causes, on one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        // Some libraries repeat the cause in their own message.
        if !line.ends_with(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        cause = error.source();
    }
    line.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot write /x")]
    struct Failed(#[source] io::Error);

    #[test]
    fn an_error_and_its_causes_are_one_line() {
        assert_eq!(chain(&Failed(io::Error::other("no\nluck"))), "cannot write /x: no luck");
    }
}
