//! Return probes of another tool, created through tracefs (Documentation/trace/uprobetracer.rst).

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use object::{Object, ObjectSymbol};

/// Reason why return probes cannot be created, if any.
pub(crate) fn lack_of_return_probes() -> Option<String> {
    let known = fs::read_to_string("/proc/filesystems").unwrap();
    (!known.split_whitespace().any(|word| word == "tracefs")).then(|| "the kernel has no tracefs".to_owned())
}

/// Return probes on functions; removed when dropped.
pub(crate) struct ReturnProbes {
    tracefs: Tracefs,
    group: String,
    names: Vec<String>,
}

impl ReturnProbes {
    /// Places them on functions of a file. `group` is a name that no other test uses.
    pub(crate) fn on(group: &str, file: &Path, functions: &[&str]) -> Self {
        let group = format!("{group}_{}", std::process::id());
        let mut probes = Self { tracefs: Tracefs::mounted(), group, names: Vec::new() };
        for (name, offset) in offsets(file, functions) {
            probes.tracefs.append(
                "uprobe_events",
                &format!("r:{}/{name} {}:{offset:#x}\n", probes.group, file.display()),
            );
            probes.names.push(name);
        }
        probes.switch("1");
        probes
    }

    /// Returns true if each has been hit.
    pub(crate) fn all_were_hit(&self) -> bool {
        // Lines of the form `FILE NAME HITS`.
        let profile = fs::read_to_string(self.tracefs.path("uprobe_profile")).unwrap_or_default();
        let was_hit = |name: &String| {
            profile.lines().any(|line| {
                let words: Vec<_> = line.split_whitespace().collect();
                matches!(words[..], [.., it, hits] if it == name && hits != "0")
            })
        };
        self.names.iter().all(was_hit)
    }

    fn switch(&self, state: &str) {
        if !self.names.is_empty() {
            fs::write(self.tracefs.path(&format!("events/{}/enable", self.group)), state).unwrap();
        }
    }
}

impl Drop for ReturnProbes {
    fn drop(&mut self) {
        self.switch("0");
        for name in &self.names {
            self.tracefs.append("uprobe_events", &format!("-:{}/{name}\n", self.group));
        }
    }
}

/// A private mount of tracefs: not every machine has it mounted.
struct Tracefs(tempfile::TempDir);

impl Tracefs {
    fn mounted() -> Self {
        let folder = tempfile::tempdir().unwrap();
        mount(Some("tracefs"), folder.path(), Some("tracefs"), MsFlags::empty(), None::<&str>).unwrap();
        Self(folder)
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    fn append(&self, file: &str, text: &str) {
        let mut file = OpenOptions::new().append(true).open(self.path(file)).unwrap();
        file.write_all(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"));
    }
}

impl Drop for Tracefs {
    fn drop(&mut self) {
        // Lazily: a process that another thread of the tests is starting can have a file of it open.
        umount2(self.0.path(), MntFlags::MNT_DETACH).unwrap();
    }
}

/// File offsets of functions, all of which exist.
fn offsets(file: &Path, functions: &[&str]) -> Vec<(String, u64)> {
    let data = fs::read(file).unwrap();
    let elf = object::File::parse(&*data).unwrap();
    let of = |function: &&str| {
        let symbol = elf.symbols().chain(elf.dynamic_symbols()).find(|it| it.name() == Ok(*function));
        let address = symbol.unwrap_or_else(|| panic!("no {function} in {}", file.display())).address();
        ((*function).to_owned(), file_offset(&elf, address))
    };
    functions.iter().map(of).collect()
}

fn file_offset(elf: &object::File<'_>, address: u64) -> u64 {
    use object::ObjectSegment;
    let segment = elf.segments().find(|it| (it.address()..it.address() + it.size()).contains(&address));
    let segment = segment.expect("a function is in a segment");
    address - segment.address() + segment.file_range().0
}
