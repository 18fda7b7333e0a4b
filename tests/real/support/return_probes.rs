//! Return probes that do not belong to jjleak, made through tracefs (Documentation/trace/uprobetracer.rst).

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use object::{Object, ObjectSymbol};

const TRACEFS: &str = "/sys/kernel/tracing";

/// Why return probes cannot be made, if so.
pub(crate) fn lack_of_return_probes() -> Option<String> {
    let events = Path::new(TRACEFS).join("uprobe_events");
    (!events.exists()).then(|| format!("{} is not there (mount -t tracefs)", events.display()))
}

/// Return probes on functions; gone when dropped.
pub(crate) struct ReturnProbes {
    group: String,
    names: Vec<String>,
}

impl ReturnProbes {
    /// Puts them on functions of a file. `group` is a name that no other test uses.
    pub(crate) fn on(group: &str, file: &Path, functions: &[&str]) -> Self {
        let mut probes = Self { group: format!("{group}_{}", std::process::id()), names: Vec::new() };
        for (name, offset) in offsets(file, functions) {
            append("uprobe_events", &format!("r:{}/{name} {}:{offset:#x}\n", probes.group, file.display()));
            probes.names.push(name);
        }
        probes.switch("1");
        probes
    }

    /// Whether each has been hit.
    pub(crate) fn all_were_hit(&self) -> bool {
        // Lines of `FILE NAME HITS`.
        let profile = fs::read_to_string(Path::new(TRACEFS).join("uprobe_profile")).unwrap_or_default();
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
            fs::write(Path::new(TRACEFS).join("events").join(&self.group).join("enable"), state).unwrap();
        }
    }
}

impl Drop for ReturnProbes {
    fn drop(&mut self) {
        self.switch("0");
        for name in &self.names {
            append("uprobe_events", &format!("-:{}/{name}\n", self.group));
        }
    }
}

fn append(file: &str, text: &str) {
    let mut file = OpenOptions::new().append(true).open(Path::new(TRACEFS).join(file)).unwrap();
    file.write_all(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"));
}

/// Offsets in the file of functions that are all there.
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
