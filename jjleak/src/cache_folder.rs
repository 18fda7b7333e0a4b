//! Folder for cache files. Losing an entry affects speed only, so entries that another user could have written are
//! ignored, and those not used for longest are deleted when the folder exceeds its limits.

use std::env;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::time::SystemTime;

use nix::fcntl::OFlag;
use nix::unistd::Uid;
use tempfile::Builder;

/// Cache files reveal which programs have run and where they are: private to their owner.
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Limits of a folder: total size of the entries in bytes, and their number. An entry has up to 128 MiB, most have less than 1 MiB.
const MAX_BYTES: u64 = 1 << 30;
const MAX_ENTRIES: usize = 8192;

/// A folder of cache files.
#[derive(Debug, Clone)]
pub struct CacheFolder {
    folder: PathBuf,
}

impl CacheFolder {
    /// Uses this folder, which the first write creates.
    #[must_use]
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// The folder of this user: in `XDG_CACHE_HOME` if that is set; otherwise the system's for root, and the user's (XDG Base
    /// Directory Specification), none without a home. A world-writable folder will not do: others could have prepared it.
    #[must_use]
    pub fn of_user() -> Option<Self> {
        let own = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let caches = if Uid::effective().is_root() {
            // sudo can leave root the variables of a user.
            let own = own.filter(|caches| fs::metadata(caches).is_ok_and(|caches| is_roots(&caches)));
            own.unwrap_or_else(|| PathBuf::from("/var/cache"))
        } else {
            let home = || env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
            own.or_else(|| home().map(|home| home.join(".cache")))?
        };
        Some(Self::new(caches.join("jjleak")))
    }

    /// Fails if nothing can be written.
    pub fn check(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(&self.folder)?;
        Builder::new().prefix(".kept-").tempfile_in(&self.folder).map(drop)
    }

    /// Opens an entry, which counts as used now. Fails with [`io::ErrorKind::PermissionDenied`] if another user could have
    /// written it.
    pub fn open(&self, name: &str) -> io::Result<File> {
        // Do not follow a symbolic link, and do not block on a named pipe that has no writer.
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(self.path(name))?;
        let metadata = file.metadata()?;
        let is_ours = metadata.uid() == Uid::effective().as_raw() || metadata.uid() == 0;
        if metadata.is_file() && is_ours && metadata.mode() & WRITABLE_BY_OTHERS == 0 {
            // Only its owner can set the time.
            let _ = file.set_modified(SystemTime::now());
            Ok(file)
        } else {
            Err(io::Error::new(io::ErrorKind::PermissionDenied, "another user could have written it"))
        }
    }

    /// Writes an entry, replacing an older one of that name, and deletes others if the folder is full. Not synced: readers detect
    /// from the content what a crash cut short.
    pub fn write(&self, name: &str, content: &[u8]) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(&self.folder)?;
        let permissions = Permissions::from_mode(FILE_MODE);
        let mut file = Builder::new().prefix(".kept-").permissions(permissions).tempfile_in(&self.folder)?;
        file.write_all(content)?;
        file.persist(self.path(name))?;
        self.shrink(MAX_BYTES, MAX_ENTRIES)
    }

    /// Deletes the entries not used for longest until the others keep within these limits.
    fn shrink(&self, max_bytes: u64, max_entries: usize) -> io::Result<()> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(&self.folder)?.flatten() {
            // Another jjleak may have deleted it.
            if let Ok(about) = entry.metadata()
                && about.is_file()
            {
                entries.push((about.modified()?, about.len(), entry.path()));
            }
        }
        entries.sort_unstable_by(|one, other| other.cmp(one));
        let (mut bytes, mut count) = (0, 0);
        for (_, size, path) in entries {
            (bytes, count) = (bytes + size, count + 1);
            if bytes > max_bytes || count > max_entries {
                let _ = fs::remove_file(path);
            }
        }
        Ok(())
    }

    /// Path of an entry.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

/// Returns true if only root can write to a folder.
fn is_roots(folder: &Metadata) -> bool {
    folder.is_dir() && folder.uid() == 0 && folder.mode() & WRITABLE_BY_OTHERS == 0
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn entries_not_used_for_longest_are_deleted_when_the_folder_is_full() {
        let place = TempDir::new().unwrap();
        let folder = CacheFolder::new(place.path().to_owned());
        for (age, name) in ["new", "newer", "used", "old"].into_iter().enumerate() {
            folder.write(name, &[0; 10]).unwrap();
            let time = SystemTime::now() - Duration::from_secs(60 * (age as u64 + 1));
            File::open(folder.path(name)).unwrap().set_modified(time).unwrap();
        }
        let left = || ["new", "newer", "used", "old"].map(|name| folder.path(name).exists());
        folder.open("used").unwrap();
        folder.shrink(35, 4).unwrap();
        assert_eq!(left(), [true, true, true, false]);
        folder.shrink(40, 1).unwrap();
        assert_eq!(left(), [false, false, true, false]);
    }

    #[test]
    fn root_uses_no_folder_in_which_others_can_write() {
        let folder = tempfile::tempdir().unwrap();
        let is_private = |mode| {
            fs::set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
            is_roots(&fs::metadata(folder.path()).unwrap())
        };
        let is_root = Uid::effective().is_root();
        assert_eq!([0o700, 0o755, 0o775, 0o1777].map(is_private), [is_root, is_root, false, false]);
    }
}
