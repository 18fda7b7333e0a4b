//! Difference between two profiles, as text, JSON, a flame graph and a page.

use std::io;

use super::{Error, Format, Options, html, svg};
use crate::analyze::Difference;

pub mod json;
pub(super) mod text;

/// Renders the difference as text, JSON, SVG or HTML.
///
/// # Errors
///
/// The other formats cannot represent two profiles.
pub fn render_difference(
    difference: &Difference<'_>,
    format: Format,
    options: &Options,
) -> Result<Vec<u8>, Error> {
    let mut out = Vec::new();
    match format {
        Format::Text => text::write(difference, options, &mut out),
        Format::Json => json::write(difference, options, &mut out),
        Format::Svg => svg::difference::write(difference, options, &mut out),
        Format::Html => html::difference::write(difference, options, &mut out),
        Format::Pprof | Format::Collapsed | Format::Dot | Format::Graph => {
            Err(io::Error::other("it has a place for one profile only"))
        }
    }
    .map_err(|source| Error { pid: difference.after.process.pid, format, source })?;
    Ok(out)
}
