use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::stat::Mode;
use nix::unistd::{Uid, chown, mkfifo};
use proptest::prelude::*;
use tempfile::TempDir;

use super::file::open_as;
use super::follow::is_throttled;
use super::{MAX_BYTES, MAX_NAME, NamedRanges, Outcome, PerfMap, Refusal, parse};
use crate::processes::{Pid, Process, Root};

fn named(text: impl AsRef<[u8]>) -> NamedRanges {
    let mut names = NamedRanges::default();
    names.add_text(text.as_ref());
    names
}

fn name_at(names: &NamedRanges, address: u64) -> Option<&str> {
    names.find(address).map(AsRef::as_ref)
}

#[test]
fn each_runtimes_lines_are_understood() {
    let text = "18c4000 300 Builtin:DeoptimizationEntry_Eager\n\
        7f2cfc0076c0 144 JS:^work /home/me/leak.js:4:14\n\
        0x00007fba49400b20 0x0000000000000130 byte java.lang.String.coder()\n\
        00007F8E12340000 2a0 instance void [System.Private.CoreLib] System.Threading.Thread::Run()[Tier0]\n\
        7f5d3c000100 1c0 java/lang/String.hashCode()I_warm\n\
        7f00e0f0\t b \tpy::main:/srv/app.py\r\n\
        7f11e0f0 5 Ljava/lang/String;::hashCode";
    let names = named(text);
    for (address, name) in [
        (0x018c_42ff, "Builtin:DeoptimizationEntry_Eager"),
        (0x7f2c_fc00_76c0, "JS:^work /home/me/leak.js:4:14"),
        (0x7fba_4940_0b21, "byte java.lang.String.coder()"),
        (0x7f8e_1234_0001, "instance void [System.Private.CoreLib] System.Threading.Thread::Run()[Tier0]"),
        (0x7f5d_3c00_02bf, "java/lang/String.hashCode()I_warm"),
        (0x7f00_e0fa, "py::main:/srv/app.py"),
        (0x7f11_e0f0, "Ljava/lang/String;::hashCode"),
    ] {
        assert_eq!(name_at(&names, address), Some(name), "{address:#x}");
    }
    assert_eq!((names.len(), names.bad_lines()), (7, 0));
}

#[test]
fn invalid_lines_are_skipped_and_counted() {
    let nonsense = [
        "nonsense",
        "1000",
        "1000 20",
        "1000 20 ",
        "-1000 20 minus",
        "+1000 20 plus",
        "0x 20 nothing",
        "xyz 20 no number",
        "1000 0 empty",
        "10000000000000000 20 too many digits",
        "ffffffffffffff00 200 beyond the end",
        "1000000000000 20 not of user space",
        "1000 ffffffffffffffff everything",
    ];
    let names = named(format!("2000 10 sound\n\n{}\r\n3000 10 sound, too\n", nonsense.join("\n")));
    assert_eq!((names.len(), names.bad_lines()), (2, nonsense.len() as u64));
}

#[test]
fn what_was_named_last_counts_where_ranges_overlap() {
    let names =
        named("1000 100 whole\n1040 20 middle\n10f0 20 end\n0ff0 20 start\n2000 10 old\n2000 10 new\n");
    let at = |address| name_at(&names, address);
    assert_eq!(
        [0xff0, 0x1010, 0x1040, 0x1060, 0x10f0, 0x110f, 0x1110].map(at),
        [Some("start"), Some("whole"), Some("middle"), Some("whole"), Some("end"), Some("end"), None]
    );
    assert_eq!(at(0x2005), Some("new"));
}

#[test]
fn a_name_can_be_any_bytes_of_any_length() {
    let long = "x".repeat(70_000);
    let mut text = b"1000 10 caf\xe9\x00\xff\n2000 10 ".to_vec();
    text.extend(long.as_bytes());
    let names = named(text);
    assert_eq!(name_at(&names, 0x1000), Some("caf\u{fffd}\0\u{fffd}"));
    assert_eq!(name_at(&names, 0x2000), Some(&long[..MAX_NAME]));
}

/// A file that the test's own process could have written, read as its perf map.
struct Map {
    folder: TempDir,
    map: PerfMap,
}

impl Map {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), map: PerfMap::default() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("perf.map")
    }

    fn append(&self, text: &str) {
        let mut file = OpenOptions::new().create(true).append(true).open(self.path()).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn update(&mut self) -> Outcome {
        self.map.refresh(open(&self.path()))
    }

    fn name_at(&self, address: u64) -> Option<&str> {
        self.map.find(address).map(AsRef::as_ref)
    }
}

type Opened = Result<Option<(File, fs::Metadata)>, Refusal>;

fn open(path: &Path) -> Opened {
    open_as(&own_root(), path, Uid::effective().as_raw())
}

fn own_pid() -> Pid {
    Pid::new(std::process::id()).unwrap()
}

fn own_root() -> Root {
    Root::of(own_pid()).unwrap()
}

fn refusal(opened: Opened) -> Refusal {
    opened.expect_err("is refused")
}

#[test]
fn a_map_is_read_when_it_comes_and_when_it_grows() {
    let mut map = Map::new();
    assert_eq!(map.update(), Outcome::Same);
    map.append("1000 10 first\n2000 10 sec");
    assert_eq!(map.update(), Outcome::Changed);
    assert_eq!((map.name_at(0x1000), map.name_at(0x2000)), (Some("first"), None));
    map.append("ond\n1000 10 again\n");
    assert_eq!(map.update(), Outcome::Changed);
    assert_eq!((map.name_at(0x1000), map.name_at(0x2000)), (Some("again"), Some("second")));
    assert_eq!(map.update(), Outcome::Same);
}

#[test]
fn an_unterminated_last_line_counts_once_it_stays_unchanged() {
    let mut map = Map::new();
    map.append("1000 10 first\n2000 10 last");
    assert_eq!(map.update(), Outcome::Changed);
    assert_eq!(map.update(), Outcome::Changed);
    assert_eq!((map.name_at(0x1000), map.name_at(0x2000)), (Some("first"), Some("last")));
    assert_eq!(map.update(), Outcome::Same);
}

#[test]
fn a_map_that_is_written_anew_is_read_anew() {
    let mut map = Map::new();
    map.append("1000 10 first\n2000 10 second\n");
    map.update();
    // As HotSpot does: the same file, truncated and rewritten.
    fs::write(map.path(), "1000 10 other\n3000 10 third\n4000 10 fourth\n").unwrap();
    assert_eq!(map.update(), Outcome::Changed);
    let at = |address| map.name_at(address);
    assert_eq!([0x1000, 0x2000, 0x3000].map(at), [Some("other"), None, Some("third")]);
    // Another file at the same path.
    fs::remove_file(map.path()).unwrap();
    map.append("5000 10 fifth\n");
    map.update();
    assert_eq!((map.name_at(0x1000), map.name_at(0x5000)), (None, Some("fifth")));
}

#[test]
fn a_map_that_takes_long_to_read_is_throttled_even_when_names_are_needed() {
    let [short, long, soon, late] = [100, 3000, 10, 90_000].map(Duration::from_millis);
    assert!(is_throttled(soon, short, true) && !is_throttled(soon, short, false));
    assert!(is_throttled(soon, long, true) && is_throttled(soon, long, false));
    assert!(!is_throttled(late, long, true) && !is_throttled(late, long, false));
}

#[test]
fn names_outlive_the_file() {
    let mut map = Map::new();
    map.append("1000 10 first\n");
    map.update();
    fs::remove_file(map.path()).unwrap();
    assert_eq!(map.update(), Outcome::Same);
    assert_eq!(map.name_at(0x1000), Some("first"));
}

#[test]
fn a_link_is_refused_and_so_is_what_has_another_name() {
    let map = Map::new();
    symlink("/etc/shadow", map.path()).unwrap();
    assert_eq!(refusal(open(&map.path())), Refusal::Link);
    fs::remove_file(map.path()).unwrap();
    let other = map.folder.path().join("other");
    fs::write(&other, "1000 10 first\n").unwrap();
    fs::hard_link(&other, map.path()).unwrap();
    assert_eq!(refusal(open(&map.path())), Refusal::HardLink);
}

#[test]
fn a_link_on_the_way_leads_to_its_place_but_not_through_proc() {
    let map = Map::new();
    map.append("1000 10 first\n");
    let way = map.folder.path().join("way");
    symlink(map.folder.path(), &way).unwrap();
    assert!(open(&way.join("perf.map")).unwrap().is_some());
    fs::remove_file(&way).unwrap();
    symlink("/proc/self/cwd", &way).unwrap();
    assert!(matches!(refusal(open(&way.join("perf.map"))), Refusal::System(_)));
}

#[test]
fn a_pipe_a_folder_and_a_device_are_refused_without_waiting() {
    let map = Map::new();
    mkfifo(&map.path(), Mode::from_bits_truncate(0o600)).unwrap();
    assert_eq!(refusal(open(&map.path())), Refusal::NotAFile("a pipe"));
    assert_eq!(refusal(open(map.folder.path())), Refusal::NotAFile("a folder"));
    assert_eq!(refusal(open(Path::new("/dev/zero"))), Refusal::NotAFile("a device"));
}

#[test]
fn a_file_of_huge_size_is_refused_and_reported_once() {
    let mut map = Map::new();
    let file = File::create(map.path()).unwrap();
    file.set_len(10 << 30).unwrap();
    let why = Refusal::TooLarge(10 << 30);
    assert!(why.to_string().ends_with("perf maps of up to 64 MiB"), "{why}");
    assert_eq!(map.update(), Outcome::Refused(why));
    assert_eq!(map.update(), Outcome::Same);
    file.set_len(MAX_BYTES).unwrap();
    assert_eq!(map.update(), Outcome::Changed);
    assert_eq!(map.map.names().len(), 0);
}

#[test]
fn a_file_of_another_user_is_refused() {
    let map = Map::new();
    map.append("1000 10 first\n");
    let (user, owner) = (4711, if Uid::effective().is_root() { 4712 } else { Uid::effective().as_raw() });
    if Uid::effective().is_root() {
        chown(&map.path(), Some(Uid::from_raw(owner)), None).unwrap();
    }
    assert_eq!(refusal(open_as(&own_root(), &map.path(), user)), Refusal::ForeignOwner { owner, user });
    assert!(open_as(&own_root(), &map.path(), owner).unwrap().is_some());
}

#[test]
fn a_map_is_named_by_the_pid_that_the_process_has_for_itself() {
    let process = Process {
        pid: own_pid(),
        start_time: 0,
        comm: String::new(),
        exe: PathBuf::new(),
        container_pid: Pid::new(7),
    };
    assert_eq!(PerfMap::path(&process), Path::new("/tmp/perf-7.map"));
}

/// With `cargo xtask test --long` this is a small fuzzer.
fn cases() -> u32 {
    if std::env::var("JJLEAK_LONG").is_ok_and(|value| value == "1") { 5000 } else { 500 }
}

/// A line in any valid notation.
fn line() -> impl Strategy<Value = (u64, u64, String, String)> {
    let way = prop::sample::select(vec![" ", "\t", "  "]);
    let prefix = prop::sample::select(vec!["", "0x", "0X", "0x000", "0"]);
    let end = prop::sample::select(vec!["\n", "\r\n", " \n"]);
    (0u64..96, 1u64..40, "[a-zA-Z(][a-z .(]{0,6}[)é]", way, prefix, end).prop_map(
        |(start, length, name, way, prefix, end)| {
            let line = format!("{prefix}{start:x}{way}{prefix}{length:x}{way}{name}{end}");
            (start, length, name, line)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn each_address_has_the_name_that_was_written_last(
        lines in prop::collection::vec(prop_oneof![
            9 => line().prop_map(Some),
            1 => Just(None),
        ], 0..60),
    ) {
        let mut expected = vec![None; 160];
        let mut text = String::new();
        for line in &lines {
            let Some((start, length, name, line)) = line else { text.push_str("no line\n"); continue };
            text.push_str(line);
            for address in *start..start + length {
                expected[usize::try_from(address).unwrap()] = Some(name.as_str());
            }
        }
        let names = named(&text);
        let found: Vec<_> = (0..160).map(|address| name_at(&names, address)).collect();
        prop_assert_eq!(found, expected);
        prop_assert_eq!(names.bad_lines(), lines.iter().filter(|line| line.is_none()).count() as u64);
    }

    #[test]
    fn a_map_says_the_same_however_it_grew(
        lines in prop::collection::vec(line(), 1..30), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let text: String = lines.into_iter().map(|(.., line)| line).collect();
        let boundary = |at: usize| (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap();
        let mut cuts: Vec<_> = cuts.iter().map(|cut| boundary(cut.index(text.len()))).collect();
        cuts.sort_unstable();
        let mut map = Map::new();
        let mut from = 0;
        for cut in cuts.into_iter().chain([text.len()]) {
            map.append(&text[from..cut]);
            map.update();
            from = cut;
        }
        let whole = named(&text);
        for address in 0..160 {
            prop_assert_eq!(map.name_at(address), name_at(&whole, address));
        }
    }

    #[test]
    fn any_bytes_are_accepted(
        text in prop::collection::vec(prop_oneof![
            Just(b' '), Just(b'\n'), Just(b'\r'), Just(b'0'), Just(b'x'), Just(b'f'), any::<u8>(),
        ], 0..300),
    ) {
        let names = named(&text);
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
        let (sound, bad): (Vec<_>, Vec<_>) = lines.map(parse).partition(Option::is_some);
        prop_assert_eq!(names.bad_lines(), bad.len() as u64);
        for line in sound.into_iter().flatten() {
            prop_assert!(names.find(line.addresses.start).is_some());
        }
    }
}
