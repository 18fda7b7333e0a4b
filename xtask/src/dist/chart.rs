//! The Helm chart: `deploy/helm`, packed as `helm package` would.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::Release;
use crate::{command::run, workspace};

/// Packs the chart.
pub(super) fn pack(release: &Release) -> Result<PathBuf> {
    let folder = release.work.join("chart");
    std::fs::create_dir_all(&folder)?;
    run(release.command("cp").arg("-r").arg(workspace::root().join("deploy/helm/jjleak")).arg(&folder))
        .context("cannot copy the chart")?;
    let chart = release.folder.join(format!("jjleak-chart-{}.tgz", release.version));
    release.tar("chart", "jjleak", &chart)?;
    Ok(chart)
}
