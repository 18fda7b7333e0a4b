//! Finds control groups outside of jjleak's own cgroup namespace, as those of other pods are: `/proc/PID/cgroup` shows them as
//! `/../other` (`cgroup_namespaces(7)`). Where the host's cgroup file system is mounted as well, as its root `/../..` in
//! `/proc/self/mountinfo`, they are in it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Maximum number of folders in which jjleak's own group is searched for; a node has some hundred groups at each level.
const MAX_FOLDERS: usize = 16_384;

/// A mounted part of the version 2 hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mount {
    root: Place,
    point: PathBuf,
    /// Path from the root of the mount to the root of the namespace, if the mount is of a group above it; empty if unknown.
    own: Vec<String>,
}

/// A group, from the root of the namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Place {
    /// Number of groups up from the root.
    up: usize,
    /// Names of the groups down from there.
    down: Vec<String>,
}

impl Place {
    fn parse(path: &str) -> Self {
        let parts = || path.split('/').filter(|part| !part.is_empty());
        let up = parts().take_while(|part| *part == "..").count();
        Self { up, down: parts().skip(up).map(str::to_owned).collect() }
    }
}

/// Returns true for the path of a group outside of the namespace.
pub(super) fn is_outside(path: &str) -> bool {
    Place::parse(path).up > 0
}

/// Folder of a group outside of the namespace, and the mount point that it is below; `None` if it is not mounted.
pub(super) fn find(path: &str) -> Option<(PathBuf, PathBuf)> {
    static MOUNTS: OnceLock<Vec<Mount>> = OnceLock::new();
    let mounts =
        MOUNTS.get_or_init(|| mounts(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()));
    let place = Place::parse(path);
    let found = mounts.iter().filter_map(|mount| Some((mount.point.clone(), mount.folder(&place)?)));
    found.into_iter().find(|(_, folder)| folder.is_dir())
}

/// The mounts of version 2 that show more than the namespace.
fn mounts(mountinfo: &str) -> Vec<Mount> {
    let all: Vec<_> = mountinfo.lines().filter_map(mount).collect();
    let own = all.iter().find(|mount| mount.root == Place::default());
    let own = own.and_then(|mount| fs::metadata(&mount.point).ok()).map(|folder| folder.ino());
    let above = all.into_iter().filter(|mount| mount.root.up > 0);
    above
        .map(|mount| Mount { own: own.and_then(|own| mount.find_own(own)).unwrap_or_default(), ..mount })
        .collect()
}

/// A line of mountinfo (`proc_pid_mountinfo(5)`), if it is of version 2.
fn mount(line: &str) -> Option<Mount> {
    let (fields, kind) = line.split_once(" - ")?;
    let mut fields = fields.split(' ').skip(3);
    let (root, point) = (fields.next()?, fields.next()?);
    // A mount point with escaped characters is not one of the host's cgroup file system.
    let is_plain = kind.starts_with("cgroup2 ") && !point.contains('\\');
    is_plain.then(|| Mount { root: Place::parse(root), point: point.into(), own: Vec::new() })
}

impl Mount {
    /// Folder of a group; `None` if it is outside of the mount, or unknown.
    fn folder(&self, place: &Place) -> Option<PathBuf> {
        let down = place.down.iter();
        if place.up == self.root.up {
            let rest = place.down.strip_prefix(&self.root.down[..])?;
            return Some(self.point.join(rest.iter().collect::<PathBuf>()));
        }
        let shared = self.root.up.checked_sub(place.up).filter(|_| self.root.down.is_empty())?;
        let own = self.own.get(..shared)?;
        Some(self.point.join(own.iter().chain(down).collect::<PathBuf>()))
    }

    /// Names of the groups from the mount's root to the group with this inode number, which is the namespace's root.
    fn find_own(&self, inode: u64) -> Option<Vec<String>> {
        let mut level = vec![self.point.clone()];
        let mut left = MAX_FOLDERS;
        for _ in 0..self.root.up {
            let folders = level.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
            let folders = folders.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            level = folders.map(|entry| entry.path()).take(left).collect();
            left -= level.len();
        }
        let own = level.iter().find(|path| fs::metadata(path).is_ok_and(|folder| folder.ino() == inode))?;
        Some(names(own.strip_prefix(&self.point).ok()?))
    }
}

fn names(path: &Path) -> Vec<String> {
    path.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host's hierarchy with two pods, of which `/kubepods/pod1/c1` is jjleak's.
    fn host() -> tempfile::TempDir {
        let host = tempfile::tempdir().unwrap();
        for group in ["kubepods/pod1/c1", "kubepods/pod2/c2", "system.slice/a.service"] {
            fs::create_dir_all(host.path().join(group)).unwrap();
        }
        host
    }

    #[test]
    fn groups_of_other_pods_are_in_the_hosts_file_system() {
        let host = host();
        let at = |path: &str| host.path().join(path).display().to_string();
        let lines = format!(
            "40 30 0:26 / {} ro - cgroup2 cgroup ro\n41 30 0:26 /../../.. {} ro,nosuid - cgroup2 cgroup ro\n",
            at("kubepods/pod1/c1"),
            at("").trim_end_matches('/'),
        );
        let found = mounts(&lines);
        let folder = |path: &str| found[0].folder(&Place::parse(path)).map(|it| it.display().to_string());
        assert_eq!(found.len(), 1);
        assert_eq!(folder("/../../pod2/c2"), Some(at("kubepods/pod2/c2")));
        assert_eq!(folder("/../../../system.slice/a.service"), Some(at("system.slice/a.service")));
        assert_eq!(folder("/../c9"), Some(at("kubepods/pod1/c9")));
        assert_eq!(folder("/../../../../above"), None);
    }

    #[test]
    fn a_group_that_is_not_mounted_is_unknown() {
        assert_eq!(mounts("40 30 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup ro\n"), []);
        assert_eq!(mounts("40 30 0:26 /../.. /host ro - cgroup cgroup ro,memory\nnonsense\n"), []);
        let host = host();
        let point = host.path().to_owned();
        let mount = Mount { root: Place::parse("/../.."), point, own: Vec::new() };
        assert_eq!(mount.folder(&Place::parse("/../x")), None, "jjleak's own place is unknown");
        assert!(mount.folder(&Place::parse("/../../x")).is_some());
        assert!(is_outside("/../x") && !is_outside("/a/b") && !is_outside("/"));
    }
}
