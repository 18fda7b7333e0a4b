use jiff::Timestamp;

use super::*;
use crate::render::sample;

/// A profile of this PID, taken this many seconds after 1970.
fn profile(pid: u32, second: i64) -> Profile {
    let mut profile = sample::profile();
    profile.process.pid = pid;
    profile.taken_at = Timestamp::from_second(second).unwrap();
    profile
}

fn keep(history: &mut History, pid: u32, second: i64) -> Id {
    let profile = profile(pid, second);
    let entry = Entry::of(Id::of(&profile), &profile, "a test");
    history.keep(&profile, entry, b"<svg/>").unwrap()
}

/// This many seconds after 1970 and after boot.
fn at(second: u32) -> Instant {
    Instant { wall: Timestamp::from_second(second.into()).unwrap(), boot: Duration::from_secs(second.into()) }
}

fn open(folder: &tempfile::TempDir) -> (History, Repairs) {
    History::open(folder.path()).unwrap()
}

fn ids(history: &History) -> Vec<String> {
    history.entries().map(|entry| entry.id.to_string()).collect()
}

#[test]
fn stored_profiles_are_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (mut history, _) = open(&folder);
    let id = keep(&mut history, 42, 1000);
    let (history, repairs) = open(&folder);
    assert_eq!((ids(&history), repairs), (vec!["0000001000000-42".to_owned()], Repairs::default()));
    let read = pprof::read(&history.profile(&id).unwrap().read().unwrap()).unwrap().profile;
    assert_eq!(read.live(), sample::profile().live());
    assert_eq!(fs::read(history.picture(&id).unwrap()).unwrap(), b"<svg/>");
    assert_eq!(history.get(&id).unwrap().why, "a test");
}

#[test]
fn an_index_that_is_cut_or_damaged_anywhere_loses_no_profile() {
    let folder = tempfile::tempdir().unwrap();
    let (mut history, _) = open(&folder);
    for pid in 1..=3 {
        keep(&mut history, pid, i64::from(pid));
    }
    let expected = ids(&history);
    let index = folder.path().join(INDEX);
    let whole = fs::read(&index).unwrap();
    // The journal's own tests try every byte.
    for at in (0..whole.len()).step_by(41) {
        fs::write(&index, &whole[..at]).unwrap();
        assert_eq!(ids(&open(&folder).0), expected, "cut at {at}");
        let mut damaged = whole.clone();
        damaged[at] ^= 0x55;
        fs::write(&index, &damaged).unwrap();
        let (history, _) = open(&folder);
        assert_eq!(ids(&history), expected, "damaged at {at}");
        assert!(history.entries().all(|entry| history.profile(&entry.id).unwrap().read().is_ok()));
    }
    fs::remove_file(&index).unwrap();
    assert_eq!(open(&folder).1, Repairs { adopted: 3, ..Repairs::default() });
}

#[test]
fn unreadable_files_are_counted_and_left_alone_until_they_expire() {
    let folder = tempfile::tempdir().unwrap();
    let profiles = folder.path().join(PROFILES);
    drop(open(&folder));
    let path = |name: &str| profiles.join(name);
    // A file of a newer version or damaged; and one that cannot be read now, here a folder because root can read any file.
    fs::write(path("0000000001000-1.pb.gz"), "no profile that is known today").unwrap();
    fs::create_dir(path("0000000002000-2.pb.gz")).unwrap();
    fs::write(path("notes.txt"), "mine").unwrap();
    let (mut history, repairs) = open(&folder);
    assert_eq!((ids(&history).len(), repairs), (0, Repairs { unreadable: 2, ..Repairs::default() }));
    assert!(path("0000000001000-1.pb.gz").exists() && path("0000000002000-2.pb.gz").exists());
    assert!(history.bytes() >= 30);
    let bounds = Bounds { bytes: u64::MAX, age: Duration::from_secs(10) };
    assert_eq!(history.apply_retention(at(11), bounds), 0);
    assert_eq!(history.apply_retention(at(60), bounds), 2);
    assert!(!path("0000000001000-1.pb.gz").exists() && path("notes.txt").exists());
}

#[test]
fn an_oversized_index_is_moved_aside_and_rebuilt_from_the_profiles() {
    let folder = tempfile::tempdir().unwrap();
    let (mut history, _) = open(&folder);
    let id = keep(&mut history, 1, 1000);
    let aside = folder.path().join(MOVED_INDEX);
    fs::OpenOptions::new().write(true).open(folder.path().join(INDEX)).unwrap().set_len(65 << 20).unwrap();
    let (mut history, repairs) = open(&folder);
    assert_eq!(repairs, Repairs { adopted: 1, rebuilt: true, ..Repairs::default() });
    assert!(history.profile(&id).unwrap().read().is_ok() && history.bytes() > 65 << 20);
    assert_eq!(open(&folder).1, Repairs::default());
    // It is removed before any profile.
    let bounds = Bounds { bytes: 1 << 20, age: Duration::MAX };
    assert_eq!(history.apply_retention(at(1000), bounds), 0);
    assert!(!aside.exists() && history.bytes() < 1 << 20);
}

#[test]
fn a_profile_that_was_changed_is_not_served() {
    let folder = tempfile::tempdir().unwrap();
    let (mut history, _) = open(&folder);
    let id = keep(&mut history, 1, 1);
    let path = history.folder.path(&id, EXTENSION);
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    assert!(matches!(history.profile(&id).unwrap().read(), Err(Error::Damaged(_))));
}

#[test]
fn the_oldest_goes_first_by_age_and_by_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let (mut history, _) = open(&folder);
    for pid in 1..=5 {
        keep(&mut history, pid, i64::from(pid) * 100);
    }
    let each = history.entries().map(Entry::bytes).sum::<u64>() / 5;
    let now = at(500);
    let bounds = |bytes, seconds| Bounds { bytes, age: Duration::from_secs(seconds) };
    assert_eq!(history.apply_retention(now, bounds(u64::MAX, 300)), 1);
    let index = history.bytes() - 4 * each;
    assert_eq!(history.apply_retention(now, bounds(index + 2 * each + each / 2, 1000)), 2);
    let left = ["0000000400000-4", "0000000500000-5"];
    assert_eq!(ids(&history), left);
    assert_eq!(fs::read_dir(folder.path().join(PROFILES)).unwrap().count(), 4);
    assert_eq!(ids(&open(&folder).0), left);
}

#[test]
fn the_oldest_go_before_the_index_becomes_too_long_to_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let (mut history, _) = open(&folder);
    history.most_index = 16 << 10;
    for pid in 1..=100 {
        keep(&mut history, pid, i64::from(pid) * 100);
    }
    let index = || fs::metadata(folder.path().join(INDEX)).unwrap().len();
    assert!(index() < history.most_index + (4 << 10), "{}", index());
    let left = ids(&history);
    assert!(left.len() < 100 && left.last().unwrap() == "0000010000000-100", "{left:?}");
    let (reopened, repairs) = open(&folder);
    assert_eq!((ids(&reopened), repairs), (left, Repairs::default()));
}

/// Size of all files in a folder.
fn on_disk(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap());
    let bytes = files.map(|file| {
        let about = file.metadata().unwrap();
        if about.is_dir() { on_disk(&file.path()) } else { about.len() }
    });
    bytes.sum()
}

#[test]
fn the_size_limit_holds_even_while_two_profiles_are_being_written() {
    const MOST: u64 = 64 << 10;
    let folder = tempfile::tempdir().unwrap();
    let (mut history, _) = open(&folder);
    let within = |history: &History| {
        let there = on_disk(folder.path());
        assert!(there <= MOST && there == history.bytes(), "{there} {}", history.bytes());
    };
    history.apply_retention(at(0), Bounds { bytes: MOST, age: Duration::MAX });
    let picture = [b'x'; 4096];
    for second in 0..200 {
        let profiles = [1, 2].map(|pid| profile(pid, second));
        let sealed = profiles.each_ref().map(|profile| {
            Sealed::of(profile, Entry::of(Id::of(profile), profile, "a test"), &picture).unwrap()
        });
        let rooms = sealed.each_ref().map(|sealed| history.reserve(sealed).unwrap());
        within(&history);
        for (room, sealed) in rooms.iter().zip(&sealed) {
            room.folder().write(sealed).unwrap();
        }
        assert!(on_disk(folder.path()) <= MOST);
        for (sealed, room) in sealed.into_iter().zip(rooms) {
            history.commit(sealed, room, Ok(())).unwrap();
        }
        within(&history);
    }
    // Profiles take most of it.
    let kept = history.entries().map(Entry::bytes).sum::<u64>();
    assert!(kept > MOST / 2, "{kept}");

    let before = ids(&history);
    let profile = profile(1, 1000);
    let large = history.keep(&profile, Entry::of(Id::of(&profile), &profile, "a test"), &vec![0; 64 << 10]);
    assert!(matches!(large, Err(Error::TooLarge { most: MOST, .. })), "{large:?}");
    assert!(matches!(history.last_error(), (1, Some(why)) if why.contains("state.max_bytes")));
    assert_eq!(ids(&history), before);
    // Space reserved for profiles that could not be written is free again.
    let sealed = Sealed::of(&profile, Entry::of(Id::of(&profile), &profile, "a test"), b"").unwrap();
    let room = history.reserve(&sealed).unwrap();
    assert!(history.reserved() > 0);
    assert!(history.commit(sealed, room, Err(Error::InvalidId)).is_err());
    assert_eq!(history.reserved(), 0);
    // So is the space of a thread that has ended in between.
    let sealed = Sealed::of(&profile, Entry::of(Id::of(&profile), &profile, "a test"), b"").unwrap();
    drop(history.reserve(&sealed).unwrap());
    assert_eq!(history.reserved(), 0);
}

#[test]
fn a_profile_that_fits_alone_is_stored_and_files_that_cannot_be_removed_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let (mut history, _) = open(&folder);
    for second in 0..20 {
        keep(&mut history, 1, second);
    }
    let sealed = |second| {
        let profile = Box::leak(Box::new(profile(2, second)));
        Sealed::of(profile, Entry::of(Id::of(profile), profile, "a test"), &[b'x'; 4096]).unwrap()
    };
    let first = sealed(100);
    // Just enough for it and its lines in the index, without lines for the others.
    let most = first.entry.bytes() + 4096;
    history.most = most;
    let room = history.reserve(&first).unwrap();
    let written = room.folder().write(&first);
    history.commit(first, room, written).unwrap();
    assert!(on_disk(folder.path()) <= most && history.bytes() == on_disk(folder.path()));
    // A folder in place of its file cannot be removed.
    let stays = folder.path().join(PROFILES).join(format!("{}{EXTENSION}", ids(&history)[0]));
    fs::remove_file(&stays).unwrap();
    fs::create_dir(&stays).unwrap();
    let before = history.bytes();
    assert!(matches!(history.reserve(&sealed(200)), Err(Error::TooLarge { .. })));
    assert!(history.bytes() > 0 && history.bytes() < before && history.reserved() == 0);
}

#[test]
fn a_profile_is_never_without_its_flame_graph_even_if_the_daemon_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let (mut history, _) = open(&folder);
    let paths: Vec<_> = (0..300)
        .map(|second| {
            let id = Id::of(&profile(1, second));
            [EXTENSION, PICTURE].map(|extension| history.folder.path(&id, extension))
        })
        .collect();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for second in 0..300 {
                keep(&mut history, 1, second);
            }
        });
        for [file, picture] in &paths {
            while !file.exists() && !writer.is_finished() {
                std::hint::spin_loop();
            }
            assert!(picture.exists(), "{}", picture.display());
        }
    });
}

#[test]
fn a_clock_set_forward_by_a_month_expires_no_profile() {
    const DAY: u32 = 86_400;
    let folder = tempfile::tempdir().unwrap();
    let (mut history, _) = open(&folder);
    for pid in 1..=3 {
        keep(&mut history, pid, 1000);
    }
    let bounds = Bounds { bytes: u64::MAX, age: Duration::from_secs((30 * DAY).into()) };
    let wrong = |second| Instant { wall: at(second + 31 * DAY).wall, ..at(second) };
    for now in [at(1000), wrong(1060), wrong(1120), at(1180), at(1240), wrong(1300)] {
        assert_eq!(history.apply_retention(now, bounds), 0, "{now:?}");
    }
    // The daemon starts while the clock is wrong.
    let (mut history, _) = open(&folder);
    assert_eq!(history.apply_retention(wrong(1360), bounds), 0);
    assert_eq!(history.apply_retention(wrong(1420), bounds), 0);
    // A new time that lasts is accepted.
    assert_eq!(history.apply_retention(wrong(1420 + DAY), bounds), 3);
}

#[test]
fn leftovers_of_a_killed_daemon_are_removed_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let (mut history, _) = open(&folder);
    let id = keep(&mut history, 1, 1);
    let picture = history.folder.path(&"0000000009000-1".parse().unwrap(), PICTURE);
    let left =
        [folder.path().join(".jjleak-a1b2c3"), history.folder.as_path().join(".jjleak-d4e5f6"), picture];
    for path in &left {
        fs::write(path, "left").unwrap();
    }
    let (history, repairs) = open(&folder);
    assert_eq!(repairs, Repairs { leftovers: 3, ..Repairs::default() });
    assert!(left.iter().all(|path| !path.exists()) && history.picture(&id).unwrap().exists());
}

#[test]
fn a_removed_folder_is_created_again() {
    let folder = tempfile::tempdir().unwrap();
    let (mut history, _) = open(&folder);
    fs::remove_dir_all(folder.path().join(PROFILES)).unwrap();
    let id = keep(&mut history, 1, 1);
    assert!(history.profile(&id).unwrap().read().is_ok());
}

#[test]
fn failures_to_store_are_counted_and_reported_until_one_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let (mut history, _) = open(&folder);
    let profiles = folder.path().join(PROFILES);
    let aside = folder.path().join("aside");
    // This stops even root, who passes any permission check.
    fs::rename(&profiles, &aside).unwrap();
    fs::write(&profiles, "").unwrap();
    let profile = profile(1, 1);
    let entry = Entry::of(Id::of(&profile), &profile, "a test");
    assert!(history.keep(&profile, entry, b"").is_err());
    assert!(matches!(history.last_error(), (1, Some(_))));
    fs::remove_file(&profiles).unwrap();
    fs::rename(&aside, &profiles).unwrap();
    keep(&mut history, 1, 1);
    assert_eq!(history.last_error(), (1, None));
}

#[test]
fn an_id_is_digits_and_a_hyphen_and_nothing_else() {
    for text in
        ["../../etc/passwd", "1-1", "0000000000001-+1", "0000000000001-01", "", "-", "0000000000001-1/.."]
    {
        assert!(text.parse::<Id>().is_err(), "{text}");
    }
    assert_eq!("0000000000001-1".parse::<Id>().unwrap().to_string(), "0000000000001-1");
}
