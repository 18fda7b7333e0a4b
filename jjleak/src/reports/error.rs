//! Failures of writing reports.

use std::io;

use crate::error_chain::chain;
use crate::{render, session, store};

/// Reason why a report was not written, or why its run failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The run.
    #[error(transparent)]
    Session(#[from] session::Error),
    /// A profile could not be rendered.
    #[error(transparent)]
    Render(#[from] render::Error),
    /// A file could not be opened or written.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The report was not printed.
    #[error("writing to stdout failed")]
    Stdout(#[source] io::Error),
    /// A call graph was not drawn.
    #[error("cannot draw the call graph")]
    Graphviz(#[source] io::Error),
    /// Several outputs failed.
    #[error("{}; {}", chain(.0.as_ref()), .1.iter().map(|error| chain(error)).collect::<Vec<_>>().join("; "))]
    Several(Box<Self>, Vec<Self>),
}

impl Error {
    /// Fails with all of the failures, if there are any.
    pub(super) fn all(failures: Vec<Self>) -> Result<(), Self> {
        let mut failures = failures.into_iter();
        let Some(first) = failures.next() else { return Ok(()) };
        let others: Vec<_> = failures.collect();
        Err(if others.is_empty() { first } else { Self::Several(Box::new(first), others) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_failures_are_named() {
        let failed = |text: &str| Error::Stdout(io::Error::other(text));
        assert!(Error::all(Vec::new()).is_ok());
        let one = Error::all(vec![failed("a")]).unwrap_err();
        assert_eq!(chain(&one), "writing to stdout failed: a");
        let two = Error::all(vec![failed("a"), failed("b")]).unwrap_err();
        assert_eq!(chain(&two), "writing to stdout failed: a; writing to stdout failed: b");
    }
}
