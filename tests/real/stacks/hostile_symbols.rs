//! Files whose debug information does harm: the process that reads symbols pays for it, and only their own symbols are lost.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{iter, process};

use jjleak::processes::{Mapping, ModuleFiles, ModuleTable, Pid};
use jjleak::snapshot::{FoundMappings, RawStack};
use jjleak::symbolize::child::VERB;
use jjleak::symbolize::{StackNames, Symbolizer};
use jjleak_common::stack::{StackFrame, StackStatus};
use memmap2::{Mmap, MmapOptions};
use nix::libc;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use object::{Object, ObjectSection, ObjectSymbol};
use tempfile::TempDir;

use crate::support::compile;
use crate::support::jjleak::{Ended, PROGRAM};
use crate::support::privilege::require_bpf;
use crate::support::process::{Process, status};

/// Size of the segment with the code of a library.
const CODE_BYTES: usize = 4096;

/// A library of two source files, with a function each.
struct Library {
    folder: TempDir,
}

impl Library {
    fn new(flags: &[&str]) -> Self {
        let library = Self { folder: tempfile::tempdir().unwrap() };
        let sources = ["first", "second"].map(|name| {
            let source = library.file(&format!("{name}.c"));
            fs::write(&source, format!("int {name}(int number) {{ return number + 1; }}\n")).unwrap();
            source
        });
        // Its code is at the same place in the file and in memory.
        let layout = ["-shared", "-fPIC", "-Wl,-z,noseparate-code"];
        library.run(Command::new("cc").args(layout).args(flags).arg("-o").arg(library.path()).args(sources));
        library
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn path(&self) -> PathBuf {
        self.file("library.so")
    }

    fn run(&self, command: &mut Command) {
        let status = command.current_dir(self.folder.path()).status().unwrap();
        assert!(status.success(), "{command:?}");
    }

    /// Removes its symbols and debug information, and names a debug file of this content.
    fn linked_to(self, name: &str) -> Self {
        fs::write(self.file("empty"), "").unwrap();
        let (path, link) = (self.path(), self.file("link"));
        self.run(Command::new("strip").arg(&path));
        let name = [name.as_bytes(), &[0]].concat();
        let padding = iter::repeat_n(0, (4 - name.len() % 4) % 4);
        fs::write(&link, name.iter().copied().chain(padding).chain([0; 4]).collect::<Vec<_>>()).unwrap();
        let section = format!(".gnu_debuglink={}", link.display());
        self.run(Command::new("objcopy").args(["--add-section", &section]).arg(&path));
        self
    }

    fn map(&self) -> Mapped {
        let bytes = fs::read(self.path()).unwrap();
        let elf = object::File::parse(&*bytes).unwrap();
        let address = |name: &str| {
            let found = elf.dynamic_symbols().find(|symbol| symbol.name() == Ok(name));
            found.unwrap().address()
        };
        let functions = ["first", "second"].map(address);
        let file = File::open(self.path()).unwrap();
        // SAFETY: nothing reads from the mapping.
        let mapping = unsafe { MmapOptions::new().len(CODE_BYTES).map_exec(&file).unwrap() };
        Mapped { mapping, functions }
    }
}

/// A library in the memory of this process.
struct Mapped {
    mapping: Mmap,
    functions: [u64; 2],
}

/// Names of places in this process, by a child.
struct ByChild {
    names: StackNames,
    modules: ModuleTable,
    rows: u32,
}

impl ByChild {
    fn new() -> Self {
        let pid = Pid::new(process::id()).unwrap();
        let mut modules = ModuleTable::default();
        modules.refresh(&mut ModuleFiles::default(), pid, &Mapping::all(pid).unwrap());
        let names = StackNames::new(Symbolizer::in_child(Path::new(PROGRAM)));
        Self { names, modules, rows: 0 }
    }

    fn of(&mut self, mapped: &Mapped, function: usize) -> String {
        self.at(mapped.mapping.as_ptr().addr() as u64 + mapped.functions[function])
    }

    fn at(&mut self, address: u64) -> String {
        let frames = vec![StackFrame::new(address, 0)];
        let stack =
            RawStack { status: StackStatus::Complete, found: FoundMappings::default(), thread: 0, frames };
        self.rows += 1;
        let stack = self.names.of_process(&self.modules).name(self.rows, || Some(stack));
        stack.frames[0].symbol.clone()
    }

    fn lost_files(&mut self) -> u64 {
        self.names.of_process(&self.modules).lost_files()
    }

    /// Fails unless other files still have names.
    fn assert_others_are_named(&mut self) {
        let name = self.at(libc::getpid as *const () as u64);
        assert!(name.ends_with("getpid"), "{name:?}");
    }
}

#[test]
fn names_come_from_a_library_with_debug_information() {
    let library = Library::new(&["-g"]).map();
    let mut names = ByChild::new();
    assert_eq!([names.of(&library, 0), names.of(&library, 1)], ["first", "second"]);
    assert_eq!(names.lost_files(), 0);
}

#[test]
fn a_debug_link_to_a_pipe_or_to_an_absolute_path_is_not_followed() {
    let library = Library::new(&["-g"]).linked_to("pipe");
    mkfifo(&library.file("pipe"), Mode::S_IRWXU).unwrap();
    let elsewhere = Library::new(&["-g"]).linked_to("/dev/watchdog");
    let pipe = Library::new(&["-g"]);
    mkfifo(&pipe.file("pipe"), Mode::S_IRWXU).unwrap();
    let absolute = pipe.file("pipe");
    let pipe = pipe.linked_to(absolute.to_str().unwrap());

    for library in [library, elsewhere, pipe] {
        let mapped = library.map();
        let mut names = ByChild::new();
        assert_eq!(names.of(&mapped, 0), "first", "exported names need no debug file");
        assert_eq!(names.lost_files(), 0);
    }
}

#[test]
fn a_debug_link_to_a_pipe_is_named() {
    require_bpf!();
    let library = Library::new(&["-g"]).linked_to("pipe");
    mkfifo(&library.file("pipe"), Mode::S_IRWXU).unwrap();
    let preload = format!("LD_PRELOAD={}", library.path().display());

    let early = compile::early().to_str().unwrap();
    let ended = Ended::of(["--format", "json", "--", "env", &preload, early, "0"]).assert_done();

    let pipe = library.file("pipe").display().to_string();
    let said =
        ended.stderr.iter().filter(|line| line.contains(&pipe) && line.contains("is not a regular file"));
    assert_eq!(said.count(), 1, "{:?}", ended.stderr);
}

#[test]
fn a_section_that_claims_to_be_huge_costs_its_own_files_lines() {
    const CH_SIZE: u64 = 8;
    let library = Library::new(&["-g", "-gz=zlib", "-Wl,--compress-debug-sections=zlib"]);
    let bytes = fs::read(library.path()).unwrap();
    let elf = object::File::parse(&*bytes).unwrap();
    let section = elf.section_by_name(".debug_info").unwrap();
    let header = section.compressed_file_range().unwrap().offset - 24;
    let file = OpenOptions::new().write(true).open(library.path()).unwrap();
    file.write_all_at(&(1_u64 << 62).to_le_bytes(), header + CH_SIZE).unwrap();

    let mapped = library.map();
    let mut names = ByChild::new();
    assert_eq!(names.of(&mapped, 0), "first", "the symbol table can be read");
    assert_eq!(names.lost_files(), 1);
    names.assert_others_are_named();
    assert_eq!(names.of(&mapped, 1), "second");
}

#[test]
fn a_file_that_is_truncated_while_it_is_read_costs_its_own_names() {
    let library = Library::new(&["-g"]);
    let mapped = library.map();
    let mut names = ByChild::new();
    assert_eq!(names.of(&mapped, 0), "first");

    OpenOptions::new().write(true).open(library.path()).unwrap().set_len(1).unwrap();

    assert_eq!(names.of(&mapped, 1), "");
    assert_eq!(names.lost_files(), 1);
    names.assert_others_are_named();
}

#[test]
fn few_pages_of_a_large_file_are_resident_while_its_debug_information_is_read() {
    const MOST_KIB: u64 = 80 << 10;
    let file = File::open(PROGRAM).unwrap();
    // SAFETY: nothing writes to the program while the tests run.
    let (content, code) = unsafe { (Mmap::map(&file).unwrap(), MmapOptions::new().map_exec(&file).unwrap()) };
    let elf = object::File::parse(&*content).unwrap();
    let (begin, length) = elf.section_by_name(".text").unwrap().file_range().unwrap();
    let mut names = ByChild::new();

    let step = usize::try_from(length / 200).unwrap();
    let offsets = (begin..begin + length).step_by(step);
    let count = offsets.filter(|offset| !names.at(code.as_ptr().addr() as u64 + offset).is_empty()).count();
    assert!(count > 150, "{count}");

    let children = fs::read_to_string(format!("/proc/self/task/{}/children", nix::unistd::gettid())).unwrap();
    let child: u32 = children.split_whitespace().next().unwrap().parse().unwrap();
    // Most of what is resident at once, less what it has of its own.
    let of_files = status(child, "VmHWM:") - status(child, "RssAnon:");
    assert!(of_files < MOST_KIB, "{of_files} KiB");
}

#[test]
fn the_process_that_reads_symbols_has_no_privileges() {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let child =
        Process::spawn(Command::new(PROGRAM).arg(VERB).stdin(OwnedFd::from(theirs)).stdout(Stdio::null()));
    // Its first message says that it is confined.
    ours.read_exact(&mut [0; 5]).unwrap();

    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let value = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(value(set), "0000000000000000", "{set}");
    }
    assert_eq!((value("NoNewPrivs:").as_str(), value("Seccomp:").as_str()), ("1", "2"));
    assert_eq!(value("Threads:"), "1");
}
