//! Installation of Debian packages.

use anyhow::{Context, Result, bail};

use crate::{
    command::{announce, on_path, run},
    sudo::Root,
};

/// Makes `apt-get` non-interactive and keeps packages from starting services: `systemctl` is offline for their scripts, and
/// those of sysvinit see the single-user run level, in which nothing starts.
const ENVIRONMENT: &[(&str, &str)] =
    &[("DEBIAN_FRONTEND", "noninteractive"), ("SYSTEMD_OFFLINE", "1"), ("RUNLEVEL", "1")];

/// Installs `packages`; `purpose` names their use.
pub(crate) fn install(packages: &[&str], purpose: &str) -> Result<()> {
    let wanted = packages.join(" ");
    if on_path("apt-get").is_none() {
        bail!("{purpose} needs {wanted}, and there is no apt-get here: install them by hand");
    }
    announce(&format!("installing {wanted} with apt-get ({purpose})"));
    let root = Root::obtain("install packages")?;
    if install_once(root, packages).is_ok() {
        return Ok(());
    }
    // The usual cause is package lists that are missing or older than the archive.
    announce("that did not work; trying again with fresh package lists");
    refresh()?;
    install_once(root, packages).with_context(|| {
        format!(
            "cannot install {wanted} ({purpose}); apt-get's message above says why \
             (packages that would have to be removed for them are left alone: remove them by hand first)"
        )
    })
}

/// Fetches apt's package lists.
pub(crate) fn refresh() -> Result<()> {
    let root = Root::obtain("refresh apt's package lists")?;
    if let Err(error) = run(root.command("apt-get", ENVIRONMENT).args(["update", "--quiet"])) {
        // One unreachable archive among several may not matter: the next installation shows it.
        announce(&format!("{error:#}; going on"));
    }
    Ok(())
}

/// Keeps a freshly installed `service` from starting at the next boot.
pub(crate) fn keep_off(service: &str) -> Result<()> {
    if on_path("systemctl").is_none() {
        return Ok(());
    }
    let root = Root::obtain("keep a service off that was installed for its program only")?;
    run(root.command("systemctl", ENVIRONMENT).args(["disable", "--quiet", service]))
}

fn install_once(root: Root, packages: &[&str]) -> Result<()> {
    run(root
        .command("apt-get", ENVIRONMENT)
        .args(["install", "--yes", "--quiet", "--no-install-recommends", "--no-remove"])
        .args(packages))
}
