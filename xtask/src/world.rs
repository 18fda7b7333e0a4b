//! Third-party programs ("the world"): downloads them, and compares jjleak's counts with those of their oracles.

#[path = "../../tests/real/world/table/mod.rs"]
#[expect(dead_code, reason = "the tests run what is installed here")]
mod table;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, bail};
use table::{Package, Program, programs};

use crate::{
    apt, build,
    command::{announce, host_cargo, run},
    test, workspace,
};

/// Environment variable with the folder of packages from registries.
pub(crate) const CACHE: &str = "JJLEAK_WORLD_CACHE";
/// Environment variable with the programs to run: names, or all.
const WORLD: &str = "JJLEAK_WORLD";
const ALL: &str = "all";
/// Environment variable with the jjleak to test.
const BINARY: &str = "JJLEAK_WORLD_BINARY";

/// `cargo xtask world`.
pub(crate) fn world(only: &[String], list: bool) -> Result<ExitCode> {
    if list {
        programs().for_each(|program| println!("{}", program.name));
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(unknown) = only.iter().find(|name| programs().all(|program| program.name != **name)) {
        bail!("no program of the world is called {unknown:?}: `cargo xtask world --list` names them");
    }
    let is_wanted = |program: &&Program| only.is_empty() || only.iter().any(|name| name == program.name);
    let cache = install(programs().filter(is_wanted))?;
    let jjleak = build::program(&build::bpf_object()?, false)?;
    let names = if only.is_empty() { ALL.to_owned() } else { only.join("\n") };
    let variables = [(WORLD, names.as_str()), (CACHE, path(&cache)?), (BINARY, path(&jjleak)?)];
    test::on_kernel("every_program_of_the_world", &variables, "load jjleak's BPF programs")
        .context("a program of the world is not as it should be")?;
    Ok(ExitCode::SUCCESS)
}

/// Installs the prerequisites of the programs that `cargo xtask test` runs.
pub(crate) fn install_for_tests() -> Result<PathBuf> {
    install(programs().filter(|program| program.is_in_tests))
}

/// Installs the prerequisites of the programs that `cargo xtask bench` runs.
pub(crate) fn install_for_benchmarks() -> Result<PathBuf> {
    install(programs().filter(|program| ["numpy", "polars", "clang"].contains(&program.name)))
}

/// Installs the prerequisites of programs. Returns the folder of packages from registries.
fn install(programs: impl Iterator<Item = &'static Program>) -> Result<PathBuf> {
    let cache = workspace::cache()?.join("world");
    let mut packages: Vec<_> = programs.flat_map(|program| program.packages).copied().collect();
    packages.extend(fetchers(&packages));
    let mut missing: Vec<_> = packages.iter().filter_map(missing_from_debian).collect();
    missing.sort_unstable();
    missing.dedup();
    if !missing.is_empty() {
        apt::install(&missing, "programs of the world")?;
        let services = packages.iter().filter_map(|package| match package {
            Package::Service { package, service, .. } if missing.contains(package) => Some(*service),
            _ => None,
        });
        services.into_iter().try_for_each(apt::keep_off)?;
    }
    packages.iter().try_for_each(|package| fetch(package, &cache))?;
    Ok(cache)
}

/// Programs that download packages from registries.
fn fetchers(packages: &[Package]) -> Vec<Package> {
    let mut fetchers = Vec::new();
    if packages.iter().any(|package| matches!(package, Package::Wheel(_))) {
        fetchers.push(Package::Debian { file: "/usr/lib/python3/dist-packages/pip", package: "python3-pip" });
    }
    if packages.iter().any(|package| matches!(package, Package::Npm(_))) {
        fetchers.push(Package::Debian { file: "/usr/bin/npm", package: "npm" });
    }
    fetchers
}

fn missing_from_debian(package: &Package) -> Option<&'static str> {
    match package {
        Package::Debian { file, package } | Package::Service { file, package, .. } => {
            (!Path::new(file).exists()).then_some(*package)
        }
        Package::Wheel(_) | Package::Npm(_) | Package::Crate(_) => None,
    }
}

/// Downloads a registry's package if it is missing, into a temporary folder first, so that the final one is complete.
fn fetch(package: &Package, cache: &Path) -> Result<()> {
    let (registry, name) = match package {
        Package::Debian { .. } | Package::Service { .. } => return Ok(()),
        Package::Wheel(name) => ("wheels", name),
        Package::Npm(name) => ("npm", name),
        Package::Crate(name) => ("crates", name),
    };
    let folder = cache.join(registry).join(name);
    if folder.exists() {
        return Ok(());
    }
    announce(&format!("fetching {name} ({registry})"));
    let partial = cache.join(format!("partial-{}", std::process::id()));
    fs::create_dir_all(folder.parent().unwrap_or(cache))
        .with_context(|| format!("cannot create a folder for {name}"))?;
    run(&mut fetcher(package, &partial)).with_context(|| format!("cannot fetch {name}"))?;
    fs::rename(&partial, &folder).with_context(|| format!("cannot create {}", folder.display()))
}

/// Command that downloads a package into a folder.
fn fetcher(package: &Package, folder: &Path) -> Command {
    match package {
        Package::Npm(name) => {
            let mut npm = Command::new("/usr/bin/npm");
            npm.args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--silent", "--prefix"]);
            npm.arg(folder).arg(name);
            npm
        }
        Package::Crate(name) => {
            let mut cargo = host_cargo();
            cargo.args(["install", "--locked", "--quiet", "--root"]).arg(folder).arg(name);
            cargo
        }
        Package::Wheel(name)
        | Package::Debian { package: name, .. }
        | Package::Service { package: name, .. } => {
            let mut pip = Command::new("/usr/bin/python3");
            pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--target"]);
            pip.arg(folder).arg(name).env("PIP_ROOT_USER_ACTION", "ignore");
            pip
        }
    }
}

fn path(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}
