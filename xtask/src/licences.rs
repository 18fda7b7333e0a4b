//! Licences: those of all dependencies must permit shipping them in a program under MIT or Apache-2.0.

use anyhow::{Context, Result, bail};
use cargo_metadata::{Metadata, MetadataCommand, Package};
use spdx::{Expression, ParseMode};

use crate::workspace;

/// Permissive licences, which require attribution at most.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Single packages with another licence, each reviewed.
const EXCEPTIONS: &[(&str, &str)] = &[
    // Draws the flame graphs. Its copyleft covers its own files, which jjleak uses unmodified.
    ("inferno", "CDDL-1.0"),
    // libFuzzer itself, linked into tests only: permissive, from the University of Illinois.
    ("libfuzzer-sys", "NCSA"),
    // Mozilla's list of certificate authorities: data, which may be redistributed unmodified.
    ("webpki-root-certs", "CDLA-Permissive-2.0"),
    ("webpki-roots", "CDLA-Permissive-2.0"),
];

/// Checks all packages of the lock file, for all platforms. Returns their number.
pub(crate) fn check() -> Result<usize> {
    let metadata = MetadataCommand::new()
        .current_dir(workspace::root())
        .exec()
        .context("cannot ask cargo for the dependencies")?;
    let problems: Vec<String> =
        metadata.packages.iter().filter_map(|package| problem(&metadata, package)).collect();
    if !problems.is_empty() {
        bail!(
            "{}; take another dependency, or add the licence to xtask's list with a reason",
            problems.join("; ")
        );
    }
    Ok(metadata.packages.len())
}

fn problem(metadata: &Metadata, package: &Package) -> Option<String> {
    let licence = package.license.as_deref();
    let verdict = if metadata.workspace_members.contains(&package.id) {
        judge_own(licence)
    } else {
        judge(&package.name, licence)
    };
    verdict.err().map(|error| format!("{} {}: {error:#}", package.name, package.version))
}

/// The workspace's own crates must declare a licence in the current SPDX syntax.
fn judge_own(licence: Option<&str>) -> Result<()> {
    let licence = licence.context("declares no licence")?;
    Expression::parse(licence)
        .with_context(|| format!("declares {licence:?}, which is no SPDX expression"))?;
    Ok(())
}

/// A dependency's licence must offer an allowed choice. Old forms such as `MIT/Apache-2.0` are understood.
fn judge(package: &str, licence: Option<&str>) -> Result<()> {
    let licence = licence.context("declares no licence")?;
    let expression = Expression::parse_mode(licence, ParseMode::LAX)
        .with_context(|| format!("declares {licence:?}, which is no SPDX expression"))?;
    let allowed = |wanted: &str| ALLOWED.contains(&wanted) || EXCEPTIONS.contains(&(package, wanted));
    if !expression.evaluate(|requirement| allowed(&requirement.to_string())) {
        bail!("its licence {licence:?} is not allowed");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_allowed_choice_is_enough() {
        judge("r-efi", Some("MIT OR Apache-2.0 OR LGPL-2.1-or-later")).unwrap();
        judge("rustix", Some("Apache-2.0 WITH LLVM-exception OR GPL-2.0-only")).unwrap();
        judge("fnv", Some("Apache-2.0 / MIT")).unwrap();
    }

    #[test]
    fn every_part_of_an_and_must_be_allowed() {
        judge("unicode-ident", Some("(MIT OR Apache-2.0) AND Unicode-3.0")).unwrap();
        assert!(judge("x", Some("MIT AND GPL-3.0-only")).is_err());
    }

    #[test]
    fn an_exception_holds_for_its_package_only() {
        judge("inferno", Some("CDDL-1.0")).unwrap();
        judge("libfuzzer-sys", Some("(MIT OR Apache-2.0) AND NCSA")).unwrap();
        assert!(judge("another", Some("CDDL-1.0")).is_err());
    }

    #[test]
    fn no_licence_or_nonsense_is_refused() {
        assert!(judge("x", None).is_err());
        assert!(judge("x", Some("see the file")).is_err());
        assert!(judge_own(None).is_err());
        assert!(judge_own(Some("MIT/Apache-2.0")).is_err());
        judge_own(Some("(MIT OR Apache-2.0) AND GPL-2.0-only")).unwrap();
    }
}
