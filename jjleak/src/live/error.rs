//! Failures of the live view.

use std::io;

use crate::{render, reports, session, store};

/// Reason why a view, or its run, failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The run.
    #[error(transparent)]
    Session(#[from] session::Error),
    /// The reports of the run.
    #[error(transparent)]
    Reports(#[from] reports::Error),
    /// The terminal.
    #[error("taking control of the terminal failed")]
    Terminal(#[source] io::Error),
    /// A flame graph could not be rendered.
    #[error(transparent)]
    Render(#[from] render::Error),
    /// A flame graph could not be written.
    #[error(transparent)]
    Store(#[from] store::Error),
}
