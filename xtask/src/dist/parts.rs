//! Components of the binary: a bill of materials (`CycloneDX`), and the licences of all crates with their texts.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use cargo_metadata::{CargoOpt, DependencyKind, Metadata, MetadataCommand, Package, PackageId};

use super::{Release, tools::Tool};
use crate::{command::run, workspace};

const CYCLONEDX: Tool = Tool { name: "cargo-cyclonedx", version: "0.5.9" };
const TARGET: &str = "x86_64-unknown-linux-musl";
/// Beginnings of the names of files with a licence or what it demands to be passed on.
const LICENCE_FILES: [&str; 6] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];
/// Parts of the binary that are no crates.
const FURTHER: &str = "\
musl (the C library): MIT, https://musl.libc.org
The standard library of Rust: MIT OR Apache-2.0, https://www.rust-lang.org
jemalloc (in tikv-jemalloc-sys): BSD-2-Clause, https://jemalloc.net
";

/// Writes the bill of materials.
pub(super) fn sbom(release: &Release) -> Result<PathBuf> {
    let name = "jjleak-sbom";
    run(release
        .command(CYCLONEDX.find_or_build()?)
        .current_dir(workspace::root())
        .args(["cyclonedx", "--manifest-path", "jjleak/Cargo.toml", "--format", "json"])
        .args(["--spec-version", "1.5", "--quiet", "--no-build-deps", "--target", TARGET])
        .args(["--override-filename", name]))
    .context("cannot write the bill of materials")?;
    let written = workspace::root().join("jjleak").join(format!("{name}.json"));
    let text = fs::read_to_string(&written).with_context(|| format!("cannot read {}", written.display()))?;
    // It is written beside the manifest of each member.
    for member in
        ["jjleak", "jjleak-common", "jjleak-ebpf", "jjleak-preload", "jjleak-sampler", "tests/fuzz", "xtask"]
    {
        let _ = fs::remove_file(workspace::root().join(member).join(format!("{name}.json")));
    }
    let sbom = release.folder.join(format!("jjleak-{}.cdx.json", release.version));
    fs::write(&sbom, without_paths(&text)).context("cannot write the bill of materials")?;
    Ok(sbom)
}

/// Replaces the paths of this machine, which are part of the names of the workspace's own crates.
fn without_paths(text: &str) -> String {
    text.replace(&format!("file://{}", workspace::root().display()), "file:///jjleak")
}

/// Writes the licences of everything that is linked into the binary.
pub(super) fn licences(release: &Release) -> Result<PathBuf> {
    let metadata = MetadataCommand::new()
        .current_dir(workspace::root())
        .features(CargoOpt::SomeFeatures(Vec::new()))
        .other_options(["--filter-platform".to_owned(), TARGET.to_owned(), "--locked".to_owned()])
        .exec()
        .context("cannot ask cargo for the dependencies")?;
    let linked = linked(&metadata)?;
    ensure!(linked.len() > 50, "{} crates are too few", linked.len());
    // Most have the same texts.
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut out = String::from("jjleak is under MIT OR Apache-2.0. The program contains:\n\n");
    for package in &linked {
        let (name, version) = (&package.name, &package.version);
        let licence = package.license.as_deref().unwrap_or("see its text");
        let _ = writeln!(out, "{name} {version}: {licence}");
        for text in texts_of(package)? {
            texts.entry(text).or_default().push(format!("{name} {version}"));
        }
    }
    out.push_str(FURTHER);
    for (text, packages) in texts {
        let _ = write!(out, "\n{}\n{}\n\n{text}\n", "-".repeat(80), packages.join(", "));
    }
    let path = release.work.join("THIRD-PARTY-LICENSES.txt");
    fs::write(&path, out).context("cannot write the licences")?;
    Ok(path)
}

/// Crates that are linked into jjleak, by name.
fn linked(metadata: &Metadata) -> Result<Vec<&Package>> {
    let graph = metadata.resolve.as_ref().context("cargo gives no dependency graph")?;
    let edges: BTreeMap<&PackageId, _> = graph.nodes.iter().map(|node| (&node.id, &node.deps)).collect();
    let own = metadata.packages.iter().find(|package| *package.name == "jjleak").context("no jjleak")?;
    let mut reached = BTreeSet::new();
    let mut open = vec![&own.id];
    while let Some(id) = open.pop() {
        let dependencies = edges.get(id).into_iter().flat_map(|dependencies| dependencies.iter());
        let normal = dependencies
            .filter(|it| it.dep_kinds.iter().any(|kind| kind.kind == DependencyKind::Normal))
            .map(|it| &it.pkg);
        open.extend(normal.filter(|id| reached.insert(*id)));
    }
    let mut linked: Vec<_> = metadata
        .packages
        .iter()
        .filter(|it| reached.contains(&it.id) && !metadata.workspace_members.contains(&it.id))
        .collect();
    linked.sort_by_key(|package| (&package.name, &package.version));
    Ok(linked)
}

/// The texts that a crate has; those of SPDX for one that has none.
fn texts_of(package: &Package) -> Result<Vec<String>> {
    let folder = package.manifest_path.parent().context("a manifest is in a folder")?;
    let mut texts = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {folder}"))? {
        let path = entry?.path();
        if path.is_file() && is_licence(&path) {
            let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            texts.push(String::from_utf8_lossy(&text).replace("\r\n", "\n").trim().to_owned());
        }
    }
    if texts.is_empty() {
        let licence = package.license.as_deref().unwrap_or_default();
        let known = licence.split([' ', '/', '(', ')']).filter_map(spdx::license_id);
        texts.extend(known.map(|licence| licence.text().trim().to_owned()));
    }
    texts.sort();
    Ok(texts)
}

fn is_licence(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().to_uppercase()).unwrap_or_default();
    LICENCE_FILES.iter().any(|begin| name.starts_with(begin))
}
