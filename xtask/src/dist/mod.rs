//! A release: a portable binary, packages, an image, a chart, and what is said of their parts. Two clones of a commit give the
//! same bytes.

mod chart;
mod check;
mod image;
mod packages;
mod parts;
mod portable;
mod tarball;
mod tools;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, ensure};

use crate::{command, command::announce, workspace};

pub(crate) use packages::Packages;

/// Folder in the target folder for the release. (`dist` is cargo's own.)
const FILES: &str = "distribution";
/// Folder in the target folder for parts of a release that others test.
const PARTS: &str = "distribution-parts";
/// File with the checksums of all others.
const CHECKSUMS: &str = "SHA256SUMS";

/// The release under construction.
pub(crate) struct Release {
    /// Folder for its files.
    folder: PathBuf,
    /// Folder for what they are made of.
    work: PathBuf,
    version: &'static str,
    /// Time of the commit, in seconds: all files have it.
    epoch: String,
}

/// `cargo xtask dist [--check]`.
pub(crate) fn dist(is_checked: bool) -> Result<ExitCode> {
    let release = Release::begin(FILES)?;
    let portable = portable::build(&release)?;
    copy(&portable.program, &release.name(""))?;
    copy(&portable.debug_file, &release.name(".debug"))?;
    let sbom = parts::sbom(&release)?;
    let licences = parts::licences(&release)?;
    tarball::pack(&release, &portable, &licences)?;
    let packages = Packages::build(&release, &portable, &licences)?;
    let image = image::build(&release, &portable.program, &licences)?;
    let chart = chart::pack(&release)?;
    release.write_checksums()?;
    if is_checked {
        check::Built {
            release: &release,
            sampler: &portable.sampler,
            packages: &packages,
            image: &image,
            chart: &chart,
            sbom: &sbom,
        }
        .check()?;
    }
    for file in release.files()? {
        let size = file.metadata().map_or(0, |file| file.len());
        println!("{:>6.1} MB  {}", megabytes(size), file.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// The portable binary alone.
pub(crate) fn portable() -> Result<PathBuf> {
    Ok(portable::build(&Release::begin(PARTS)?)?.program)
}

/// The packages alone.
pub(crate) fn packages() -> Result<Packages> {
    let release = Release::begin(PARTS)?;
    let portable = portable::build(&release)?;
    let licences = parts::licences(&release)?;
    Packages::build(&release, &portable, &licences)
}

impl Release {
    fn begin(folder: &str) -> Result<Self> {
        let folder = workspace::target()?.join(folder);
        let work = workspace::target()?.join("distribution-work");
        // What an older version has left would be released with it.
        for folder in [&folder, &work] {
            let _ = fs::remove_dir_all(folder);
            fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        let git = command::stdout(Command::new("git").current_dir(workspace::root()).args([
            "log",
            "-1",
            "--format=%ct",
        ]));
        let epoch = git.context("a release has the time of its commit, and there is none")?.trim().to_owned();
        Ok(Self { folder, work, version: env!("CARGO_PKG_VERSION"), epoch })
    }

    /// Path of a file of the release that is named after the version.
    fn name(&self, suffix: &str) -> PathBuf {
        self.folder.join(format!("jjleak-{}-x86_64-linux{suffix}", self.version))
    }

    /// A command that takes the time of the commit for the present.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("SOURCE_DATE_EPOCH", &self.epoch).env("LC_ALL", "C").env("TZ", "UTC");
        command
    }

    /// Packs a folder that is in a folder of the work into an archive whose bytes depend on its content alone.
    fn tar(&self, within: &str, folder: &str, archive: &Path) -> Result<()> {
        self.pack(within, &["--use-compress-program=gzip -n -9"], &[folder], archive)
    }

    /// Packs files of a folder of the work, with these options of tar.
    fn pack(&self, within: &str, options: &[&str], files: &[&str], archive: &Path) -> Result<()> {
        announce(&format!("packing {}", archive.display()));
        command::run(
            self.command("tar")
                .current_dir(self.work.join(within))
                .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"])
                .args(["--mode=u+rw,go+r,go-w", &format!("--mtime=@{}", self.epoch)])
                .args(options)
                .arg("-cf")
                .arg(archive)
                .args(files),
        )
    }

    /// The files of the release, by name.
    fn files(&self) -> Result<Vec<PathBuf>> {
        let mut files: Vec<_> =
            fs::read_dir(&self.folder)?.map(|it| Ok(it?.path())).collect::<Result<_>>()?;
        files.sort();
        Ok(files)
    }

    fn write_checksums(&self) -> Result<()> {
        let files = self.files()?;
        let names = files.iter().filter_map(|file| file.file_name());
        let sums = command::stdout(Command::new("sha256sum").current_dir(&self.folder).args(names))?;
        ensure!(sums.lines().count() == files.len(), "sha256sum has left files out");
        fs::write(self.folder.join(CHECKSUMS), sums).context("cannot write the checksums")
    }
}

fn megabytes(bytes: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "for a line that people read")]
    let bytes = bytes as f64;
    bytes / 1e6
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to)
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
        .map(drop)
}
