//! Lookup of the packages that own files of this host, and of their debug packages.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::distribution::Distribution;

/// Packages of the distribution.
#[derive(Debug, Default)]
pub struct Packages {
    family: Family,
    /// Owning packages of the requested files, by path.
    owners: HashMap<PathBuf, String>,
}

/// Distributions with the same package tools.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Family {
    Debian,
    Ubuntu,
    Fedora,
    #[default]
    Other,
}

impl Packages {
    /// Looks up the owners of these files; `root` is the root of the host's files.
    #[must_use]
    pub fn of<'a>(root: &Path, files: impl Iterator<Item = &'a Path>) -> Self {
        let family = family(&Distribution::of(root));
        let owners = match family {
            Family::Debian | Family::Ubuntu => dpkg_owners(&root.join("var/lib/dpkg/info"), files),
            Family::Fedora | Family::Other => HashMap::new(),
        };
        Self { family, owners }
    }

    /// The package with the debug information of a file, in the form that `install` takes; `None` if there is none.
    #[must_use]
    pub fn debug_package(&self, path: &Path) -> Option<String> {
        if self.family == Family::Fedora {
            return Some(shell_words::quote(&path.to_string_lossy()).into_owned());
        }
        let package = self.owners.get(path)?;
        // glibc has an ordinary debug package.
        Some(if package == "libc6" { "libc6-dbg".to_owned() } else { format!("{package}-dbgsym") })
    }

    /// The command that installs debug packages.
    #[must_use]
    pub fn install(&self, debug_packages: &str) -> String {
        match self.family {
            Family::Fedora => format!("dnf debuginfo-install $(rpm -qf {debug_packages})"),
            Family::Debian | Family::Ubuntu | Family::Other => format!("apt install {debug_packages}"),
        }
    }

    /// The archive that has to be set up before debug packages can be installed.
    #[must_use]
    pub const fn archive(&self) -> Option<&'static str> {
        match self.family {
            Family::Debian => {
                Some("-dbgsym packages are in a separate archive: https://wiki.debian.org/HowToGetABacktrace")
            }
            Family::Ubuntu => Some(
                "-dbgsym packages are in a separate archive: https://documentation.ubuntu.com/project/how-ubuntu-is-made/concepts/debug-symbol-packages/",
            ),
            Family::Fedora | Family::Other => None,
        }
    }
}

fn family(distribution: &Distribution) -> Family {
    if distribution.is_any(&["ubuntu"]) {
        Family::Ubuntu
    } else if distribution.is_any(&["debian"]) {
        Family::Debian
    } else if distribution.is_any(&["fedora", "rhel", "centos"]) {
        Family::Fedora
    } else {
        Family::Other
    }
}

/// Reads dpkg's file list of each package.
fn dpkg_owners<'a>(info: &Path, files: impl Iterator<Item = &'a Path>) -> HashMap<PathBuf, String> {
    // The lists contain paths as packaged, some from before /lib became a link to /usr/lib.
    let wanted: HashMap<String, &Path> = files
        .flat_map(|file| {
            let path = file.to_string_lossy().into_owned();
            let short = path.strip_prefix("/usr").map(str::to_owned);
            [Some(path), short].into_iter().flatten().map(move |path| (path, file))
        })
        .collect();
    let mut owners = HashMap::new();
    let lists = fs::read_dir(info).into_iter().flatten().flatten();
    for list in lists.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|it| it == "list"))
    {
        let Ok(paths) = fs::read_to_string(&list) else { continue };
        let package = list.file_stem().unwrap_or_default().to_string_lossy();
        let package = package.split(':').next().unwrap_or_default();
        for file in paths.lines().filter_map(|path| wanted.get(path)) {
            owners.insert(file.to_path_buf(), package.to_owned());
        }
    }
    owners
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(release: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let info = root.path().join("var/lib/dpkg/info");
        fs::create_dir_all(&info).unwrap();
        fs::create_dir_all(root.path().join("etc")).unwrap();
        fs::write(root.path().join("etc/os-release"), release).unwrap();
        fs::write(info.join("libc6:amd64.list"), "/.\n/lib/x86_64-linux-gnu/libc.so.6\n").unwrap();
        fs::write(info.join("perl-base.list"), "/usr/bin/perl\n").unwrap();
        root
    }

    fn remedies(release: &str) -> [Option<String>; 3] {
        let root = host(release);
        let files = ["/usr/lib/x86_64-linux-gnu/libc.so.6", "/usr/bin/perl", "/opt/own"].map(Path::new);
        let packages = Packages::of(root.path(), files.into_iter());
        files.map(|file| packages.debug_package(file).map(|package| packages.install(&package)))
    }

    #[test]
    fn debug_packages_are_named_as_the_distribution_names_them() {
        let apt = |package: &str| Some(format!("apt install {package}"));
        for release in ["ID=debian\n", "NAME=\"Linux Mint\"\nID=linuxmint\nID_LIKE=\"ubuntu debian\"\n"] {
            assert_eq!(remedies(release), [apt("libc6-dbg"), apt("perl-base-dbgsym"), None]);
        }
        let [_, perl, _] = remedies("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n");
        assert_eq!(perl.unwrap(), "dnf debuginfo-install $(rpm -qf /usr/bin/perl)");
        assert_eq!(remedies("ID=arch\n"), [None, None, None]);
        assert_eq!(remedies(""), [None, None, None]);
    }
}
