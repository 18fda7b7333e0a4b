//! The Linux distribution of this host (os-release(5)), and its packages with newer kernels.

use std::fs;
use std::path::Path;

/// A distribution.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Distribution {
    /// Lower-case name, such as `debian`.
    pub id: String,
    /// Names of the distributions that it is like.
    pub like: Vec<String>,
    /// Version, such as `12`; empty if it has none.
    pub version: String,
    /// Name and version for humans.
    pub name: String,
}

/// The way to Linux 6.1 or newer, by distribution and version; docs/kernels.md lists the same.
const NEWER_KERNELS: [(&str, &str, &str); 13] = [
    ("debian", "11", "apt install linux-image-6.1-amd64 (from bullseye-security)"),
    ("debian", "10", "upgrade to Debian 12"),
    ("ubuntu", "22.04", "apt install linux-generic-hwe-22.04"),
    ("ubuntu", "20.04", "upgrade to Ubuntu 22.04 with linux-generic-hwe-22.04, or newer"),
    ("rhel", "9", "dnf upgrade kernel"),
    ("rhel", "8", "upgrade to release 9"),
    ("centos", "7", "move to release 9"),
    ("amzn", "2023", "dnf upgrade kernel"),
    ("amzn", "2", "move to Amazon Linux 2023"),
    ("sles", "15", "upgrade to Service Pack 6 or newer"),
    ("opensuse-leap", "15", "upgrade to Leap 15.6 or newer"),
    ("alpine", "3", "upgrade to Alpine 3.19 or newer"),
    ("fedora", "", "dnf upgrade kernel"),
];

impl Distribution {
    /// The distribution of this host. In a container: that of the container.
    #[must_use]
    pub fn this() -> Self {
        Self::of(Path::new("/"))
    }

    /// The distribution whose files are below a root; empty if it does not say.
    #[must_use]
    pub fn of(root: &Path) -> Self {
        let read = |path: &str| fs::read_to_string(root.join(path));
        Self::parse(&read("etc/os-release").or_else(|_| read("usr/lib/os-release")).unwrap_or_default())
    }

    fn parse(release: &str) -> Self {
        let value = |key: &str| {
            let line = release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            line.map(|value| value.trim_matches(['"', '\'']).to_owned()).unwrap_or_default()
        };
        Self {
            id: value("ID"),
            like: value("ID_LIKE").split_ascii_whitespace().map(str::to_owned).collect(),
            version: value("VERSION_ID"),
            name: value("PRETTY_NAME"),
        }
    }

    /// Returns true if this or a distribution that it is like has one of these names.
    #[must_use]
    pub fn is_any(&self, names: &[&str]) -> bool {
        self.names().any(|name| names.contains(&name))
    }

    /// The way to a kernel with everything that jjleak needs; `None` if unknown.
    #[must_use]
    pub fn newer_kernel(&self) -> Option<&'static str> {
        let major = |version: &str| version.split('.').next().unwrap_or_default().to_owned();
        let fits =
            |wanted: &str| wanted.is_empty() || self.version == wanted || wanted == major(&self.version);
        let of = |name: &str| NEWER_KERNELS.iter().find(|(id, version, _)| *id == name && fits(version));
        self.names().find_map(of).map(|(_, _, to_do)| *to_do)
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        [&*self.id].into_iter().chain(self.like.iter().map(String::as_str))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn newer_kernel(release: &str) -> Option<&'static str> {
        Distribution::parse(release).newer_kernel()
    }

    #[test]
    fn the_name_for_humans_is_unquoted() {
        let debian = Distribution::parse(
            "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nID=debian\nVERSION_ID=\"12\"\n",
        );
        assert_eq!((&*debian.name, &*debian.version), ("Debian GNU/Linux 12 (bookworm)", "12"));
        assert_eq!(Distribution::parse(""), Distribution::default());
    }

    #[test]
    fn the_package_with_a_newer_kernel_is_that_of_the_version() {
        let hwe = newer_kernel("ID=ubuntu\nID_LIKE=debian\nVERSION_ID=\"22.04\"").unwrap();
        assert!(hwe.contains("hwe-22.04"));
        assert!(newer_kernel("ID=debian\nVERSION_ID=11").unwrap().contains("6.1"));
        assert_eq!(newer_kernel("ID=debian\nVERSION_ID=13"), None);
        assert!(newer_kernel("ID=alpine\nVERSION_ID=3.16.2").is_some());
        assert_eq!(newer_kernel(""), None);
    }

    #[test]
    fn a_derivative_is_advised_like_its_model() {
        let rocky = newer_kernel("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\nVERSION_ID=\"9.1\"");
        assert_eq!(rocky, Some("dnf upgrade kernel"));
    }
}
