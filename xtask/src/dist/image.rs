//! The container image: the portable binary and its configuration, and nothing else. Built by buildah, without a daemon.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use super::Release;
use crate::{
    apt,
    command::{on_path, run, stdout},
    sudo::Root,
    workspace,
};

/// Builds the image as an archive of the Open Container Initiative.
pub(super) fn build(release: &Release, program: &Path, licences: &Path) -> Result<PathBuf> {
    if on_path("buildah").is_none() {
        apt::install(&["buildah"], "the container image is built by buildah")?;
    }
    let root = Root::obtain("build a container image")?;
    let buildah = |arguments: &[&str]| -> Command {
        let mut command = root.command("buildah", &[("BUILDAH_ISOLATION", "chroot")]);
        command.args(["--storage-driver", "vfs", "--root"]).arg(release.work.join("images"));
        command.arg("--runroot").arg(release.work.join("images-run")).args(arguments);
        command
    };
    let container = stdout(&mut buildah(&["from", "scratch"])).context("cannot begin an image")?;
    let container = container.trim();
    let deploy = workspace::root().join("deploy");
    let configuration = deploy.join("jjleak.toml");
    for (file, place, mode) in [
        (program, "/usr/bin/jjleak", "0755"),
        (&*configuration, "/etc/jjleak/jjleak.toml", "0644"),
        (licences, "/usr/share/doc/jjleak/THIRD-PARTY-LICENSES.txt", "0644"),
    ] {
        run(buildah(&["copy", "--quiet", "--chmod", mode, container]).arg(file).arg(place))?;
    }
    let version = format!("org.opencontainers.image.version={}", release.version);
    run(&mut buildah(&[
        "config",
        "--entrypoint",
        r#"["/usr/bin/jjleak"]"#,
        "--cmd",
        "daemon --config /etc/jjleak/jjleak.toml",
        "--env",
        "XDG_CACHE_HOME=/var/lib/jjleak",
        "--volume",
        "/var/lib/jjleak",
        "--label",
        "org.opencontainers.image.title=jjleak",
        "--label",
        &version,
        "--label",
        "org.opencontainers.image.licenses=MIT OR Apache-2.0",
        container,
    ]))?;
    let archive = release.folder.join(format!("jjleak-{}-oci.tar", release.version));
    // An archive by buildah would have the time at which it was written.
    let destination = format!("oci:{}:jjleak:{}", release.work.join("image").display(), release.version);
    run(&mut buildah(&[
        "commit",
        "--quiet",
        "--rm",
        "--format=oci",
        "--disable-compression=false",
        "--timestamp",
        &release.epoch,
        container,
        &destination,
    ]))
    .context("cannot write the image")?;
    release.pack("image", &[], &["blobs", "index.json", "oci-layout"], &archive)?;
    Ok(archive)
}
