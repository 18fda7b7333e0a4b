//! Surroundings of a program: its folder, its environment, and the packages that it needs.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::table::{Package, Program};

/// Environment variable with the folder in which `cargo xtask` has stored packages from registries.
const CACHE: &str = "JJLEAK_WORLD_CACHE";

/// Debian's folders only: a developer's additions may contain scripts of the same names.
const FOLDERS: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// The prepared folder and the command of a program.
pub(crate) struct Surroundings {
    /// The prepared state, copied for each run.
    prepared: TempDir,
    /// Working directory of the runs.
    folder: TempDir,
    words: Vec<String>,
    environment: Vec<(String, String)>,
}

/// Reason why a program cannot run, if any.
pub(super) fn lack(program: &Program) -> Option<String> {
    program.packages.iter().find_map(|package| {
        let (there, name) = match package {
            Package::Debian { file, package } | Package::Service { file, package, .. } => {
                (Path::new(file).exists(), *package)
            }
            Package::Wheel(name) => (fetched("wheels", name).is_dir(), *name),
            Package::Npm(name) => (fetched("npm", name).is_dir(), *name),
            Package::Crate(name) => (fetched("crates", name).is_dir(), *name),
        };
        (!there).then(|| format!("{name} is not installed"))
    })
}

impl Surroundings {
    /// Prepares the program's folder.
    pub(super) fn of(program: &Program) -> Self {
        if let Some(lack) = lack(program) {
            panic!("{lack}");
        }
        let (prepared, folder) = (folder(), folder());
        let toolchain = toolchain();
        let binaries = toolchain.join("bin");
        let here = folder.path().to_path_buf();
        let replaced = |word: &str| {
            [
                ("{folder}", here.clone()),
                ("{npm}", cache().join("npm")),
                ("{crates}", cache().join("crates")),
                ("{rustc}", binaries.join("rustc")),
                ("{cargo}", binaries.join("cargo")),
            ]
            .iter()
            .fold(word.to_owned(), |word, (name, path)| word.replace(name, path.to_str().unwrap()))
        };
        let wheels = program.packages.iter().filter_map(|package| match package {
            Package::Wheel(name) => Some(fetched("wheels", name).to_str().unwrap().to_owned()),
            _ => None,
        });
        let mut environment = vec![
            ("PATH".to_owned(), format!("{}:{FOLDERS}", binaries.display())),
            ("HOME".to_owned(), folder.path().to_str().unwrap().to_owned()),
            ("LC_ALL".to_owned(), "C".to_owned()),
            // Runs are alike.
            ("PYTHONHASHSEED".to_owned(), "1".to_owned()),
            ("PYTHONDONTWRITEBYTECODE".to_owned(), "1".to_owned()),
            ("PYTHONPATH".to_owned(), wheels.collect::<Vec<_>>().join(":")),
        ];
        let own = program.environment.iter();
        environment.extend(own.map(|(name, value)| ((*name).to_owned(), replaced(value))));
        let words = program.command.iter().map(|word| replaced(word)).collect();
        let it = Self { prepared, folder, words, environment };
        it.prepare(program, &replaced);
        it
    }

    fn prepare(&self, program: &Program, replaced: &impl Fn(&str) -> String) {
        self.renew();
        for line in program.prepare {
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", &replaced(line)]).current_dir(self.folder.path()).stdin(Stdio::null());
            let output = self.surround(&mut shell).output().unwrap();
            assert!(output.status.success(), "cannot prepare {}: `{line}`: {output:?}", program.name);
        }
        copy(self.folder.path(), self.prepared.path());
    }

    /// Restores the prepared state of the folder.
    pub(super) fn renew(&self) {
        for entry in fs::read_dir(self.folder.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.is_symlink() {
                fs::remove_dir_all(path)
            } else {
                fs::remove_file(path)
            }
            .unwrap();
        }
        copy(self.prepared.path(), self.folder.path());
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Words of the command.
    pub(super) fn words(&self) -> &[String] {
        &self.words
    }

    /// Sets the environment of a command to exactly the program's.
    pub(super) fn surround<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env_clear().envs(self.environment.iter().map(|(name, value)| (name, value)))
    }
}

/// A folder that other users, such as those of servers, can enter.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

/// Copies the content of a folder, with owners and times.
fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").arg(from.join(".")).arg(to).status().unwrap();
    assert!(status.success(), "cannot copy {} to {}", from.display(), to.display());
}

fn cache() -> PathBuf {
    env::var_os(CACHE).map(PathBuf::from).unwrap_or_default()
}

/// Path of a package from a registry.
fn fetched(registry: &str, name: &str) -> PathBuf {
    cache().join(registry).join(name)
}

/// Path of the toolchain itself: rustup's programs on the PATH are only proxies.
fn toolchain() -> PathBuf {
    let output = Command::new("rustc").args(["--print", "sysroot"]).output().unwrap();
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}
