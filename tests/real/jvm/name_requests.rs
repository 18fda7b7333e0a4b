//! `--refresh-perf-map`: JVMs are asked for the names of their code only if that is harmless. Anything else in the places that
//! jjleak uses for the request is left untouched.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, Uid, chown, mkfifo};
use tempfile::TempDir;

use crate::support::bounded::{SOON, until};
use crate::support::java::{Java, classes, java_frames};
use crate::support::jjleak::Jjleak;
use crate::support::privilege::require_program;

/// Attaches to a process with an option that asks it for a perf map; counts blocks of at least a few pages only.
fn asking(pid: &str) -> Jjleak {
    Jjleak::attached(["-v", "--refresh-perf-map", "-p", pid, "3600", "--format", "json", "-z", "4000"])
}

/// jjleak's message on a failed request.
fn failure(jjleak: &mut Jjleak) -> String {
    jjleak.wait_for(" WARN process ")
}

/// Fails unless the program continues to run and has printed only the requested output.
fn assert_unharmed(java: &mut Java) {
    assert_eq!(java.ask("leak 1"), [""; 0]);
}

/// Socket of a JVM, and its perf map. Both are removed when dropped.
struct Places {
    socket: PathBuf,
    map: PathBuf,
}

impl Places {
    fn of(java: &Java) -> Self {
        let pid = java.pid();
        Self { socket: format!("/tmp/.java_pid{pid}").into(), map: format!("/tmp/perf-{pid}.map").into() }
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        // They may not exist.
        let _ = fs::remove_file(&self.socket);
        let _ = fs::remove_file(&self.map);
    }
}

/// A copy of the installed JDK whose description of its code matches no known version.
fn unknown_jdk() -> TempDir {
    let home = fs::canonicalize("/usr/bin/java").unwrap();
    let home = home.ancestors().nth(2).unwrap();
    let copy = tempfile::tempdir().unwrap();
    fs::set_permissions(copy.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (lib, server) = (copy.path().join("lib"), copy.path().join("lib/server"));
    for folder in [&copy.path().join("bin"), &server] {
        fs::create_dir_all(folder).unwrap();
    }
    for file in fs::read_dir(home.join("lib")).unwrap().map(|file| file.unwrap().path()) {
        if !file.ends_with("server") && !file.ends_with("libjli.so") {
            symlink(&file, lib.join(file.file_name().unwrap())).unwrap();
        }
    }
    symlink(home.join("conf"), copy.path().join("conf")).unwrap();
    // The JVM locates its other files from these.
    for file in ["bin/java", "lib/libjli.so"] {
        assert!(
            Command::new("cp").arg(home.join(file)).arg(copy.path().join(file)).status().unwrap().success()
        );
    }
    let mut library = fs::read(home.join("lib/server/libjvm.so")).unwrap();
    let name = b"_log2_segment_size";
    let at = library.windows(name.len()).position(|bytes| bytes == name).unwrap();
    library[at..at + 5].copy_from_slice(b"_none");
    fs::write(server.join("libjvm.so"), library).unwrap();
    copy
}

#[test]
fn a_jvm_that_jjleak_cannot_read_writes_down_its_names() {
    require_program!("javac");
    let jdk = unknown_jdk();
    // For compiled code whose frames can be found.
    let options = ["-Xbatch", "-XX:TieredStopAtLevel=1", "-XX:+PreserveFramePointer"];
    let mut java = Java::start(&jdk.path().join("bin/java"), &options);
    let places = Places::of(&java);
    java.ask("warm 20000");
    java.ask("leak 20000");
    let mut jjleak = asking(&java.pid().to_string());
    // Before the warning, it could be a JVM that is just starting, whose code cannot be unwound yet.
    let warning = format!(" WARN {}", jdk.path().join("lib/server/libjvm.so").display());
    jjleak.wait_for_all(&[" INFO process", &warning]);
    java.ask("leak 500");
    let ended = jjleak.interrupt().assert_done();

    let report = ended.report();
    let names: Vec<_> = report.stacks.iter().flat_map(java_frames).collect();
    assert!(names.iter().any(|name| name.contains("Leak.")), "{names:?} {:#?}", ended.stderr);
    assert!(places.socket.exists() && places.map.exists());
    assert!(!Path::new(&format!("/proc/{0}/cwd/.attach_pid{0}", java.pid())).exists());
    assert_unharmed(&mut java);
}

#[test]
fn a_jvm_that_listens_already_is_asked_without_a_signal() {
    require_program!("javac");
    // It listens from the start, because SIGQUIT would end it.
    let mut java = Java::start(Path::new("java"), &["-Xrs"]);
    let places = Places::of(&java);
    let mut jjleak = asking(&java.pid().to_string());
    jjleak.wait_for(" INFO process");
    jjleak.interrupt().assert_done();

    assert!(places.map.exists());
    assert_unharmed(&mut java);
}

#[test]
fn a_jvm_that_must_not_get_the_signal_does_not_get_it() {
    require_program!("javac");
    for (option, why) in [
        ("-XX:+DisableAttachMechanism", "it runs with -XX:+DisableAttachMechanism"),
        ("-Xrs", "its attach listener is not running, and it must not be sent SIGQUIT"),
    ] {
        let mut java = Java::start(Path::new("java"), &[option]);
        let places = Places::of(&java);
        // Created because of -Xrs.
        let _ = fs::remove_file(&places.socket);
        let mut jjleak = asking(&java.pid().to_string());
        let said = failure(&mut jjleak);
        jjleak.interrupt().assert_done();

        assert!(said.ends_with(why), "{said}");
        assert!(!places.map.exists() && !places.socket.exists());
        assert_unharmed(&mut java);
    }
}

#[test]
fn what_is_no_socket_of_the_jvm_is_not_talked_to() {
    require_program!("javac");
    let mut java = Java::start(Path::new("java"), &[]);
    let places = Places::of(&java);
    let other = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(other.path().join("socket")).unwrap();
    let hostile: [(&dyn Fn(), &str); 4] = [
        (&|| symlink(other.path().join("socket"), &places.socket).unwrap(), "is not a socket"),
        (&|| mkfifo(&places.socket, Mode::from_bits_truncate(0o600)).unwrap(), "is not a socket"),
        (
            &|| {
                drop(UnixListener::bind(&places.socket).unwrap());
                chown(&places.socket, Some(Uid::from_raw(4711)), None).unwrap();
            },
            "belongs to user 4711",
        ),
        // A link to another file, which would make the JVM overwrite that file.
        (
            &|| symlink(other.path().join("file"), &places.map).unwrap(),
            "is in the way: it is a symbolic link",
        ),
    ];
    for (put, why) in hostile {
        put();
        let mut jjleak = asking(&java.pid().to_string());
        let said = failure(&mut jjleak);
        jjleak.interrupt().assert_done();
        assert!(said.ends_with(why), "{said}");
        let _ = fs::remove_file(&places.socket);
    }
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "somebody has connected");
    assert_unharmed(&mut java);
}

#[test]
fn a_jvm_that_never_answers_is_given_up() {
    require_program!("javac");
    let mut java = Java::start(Path::new("java"), &[]);
    let places = Places::of(&java);
    let silent = UnixListener::bind(&places.socket).unwrap();
    let mut jjleak = asking(&java.pid().to_string());
    let said = failure(&mut jjleak);
    jjleak.interrupt().assert_done();

    assert!(said.ends_with("it did not answer in time"), "{said}");
    drop(silent);
    assert_unharmed(&mut java);
}

#[test]
fn a_jvm_that_is_stopped_does_not_get_the_signal() {
    require_program!("javac");
    let mut java = Java::start(Path::new("java"), &[]);
    let places = Places::of(&java);
    let pid = Pid::from_raw(i32::try_from(java.pid()).unwrap());
    kill(pid, Signal::SIGSTOP).unwrap();
    let mut jjleak = asking(&java.pid().to_string());
    let said = failure(&mut jjleak);
    jjleak.interrupt().assert_done();
    kill(pid, Signal::SIGCONT).unwrap();

    assert!(
        said.ends_with("its attach listener is not running, and SIGQUIT was not sent: it is stopped"),
        "{said}"
    );
    assert_unharmed(&mut java);
    assert!(!places.socket.exists());
}

/// A JVM that cannot create its socket, and its working directory.
fn deaf() -> (Java, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let script = "mount --bind \"$0\" /mnt && cd \"$1\" && mount -t tmpfs -o ro tmpfs /tmp && \
        exec java -XX:-UsePerfData -cp /mnt Leak";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(classes()).arg(folder.path());
    (Java::spawn(&mut command), folder)
}

#[test]
fn the_file_stays_for_a_jvm_that_has_not_answered_the_signal() {
    require_program!("javac");
    let (mut java, folder) = deaf();
    let mut jjleak = asking(&java.pid().to_string());
    let said = failure(&mut jjleak);
    jjleak.interrupt().assert_done();

    let file = format!(".attach_pid{}", java.pid());
    assert!(said.contains(&format!("{file} in its working directory was left in place")), "{said}");
    assert!(folder.path().join(file).exists());
    assert_unharmed(&mut java);
}

#[test]
fn a_request_that_is_not_waited_for_names_what_it_leaves() {
    require_program!("javac");
    let (mut java, folder) = deaf();
    let file = folder.path().join(format!(".attach_pid{}", java.pid()));
    let jjleak = asking(&java.pid().to_string());
    until(SOON, "the JVM is being asked", || file.exists());
    let ended = jjleak.interrupt().assert_done();

    let said = ended.stderr.iter().find(|line| line.contains("gave up waiting for the JVM"));
    assert!(said.is_some_and(|line| line.contains("was left in place")), "{:#?}", ended.stderr);
    assert!(file.exists());
    assert_unharmed(&mut java);
}

#[test]
fn a_jvm_in_a_container_is_asked_there_as_its_own_user() {
    require_program!("javac");
    let script = "mount --bind \"$0\" /mnt && mount -t tmpfs -o mode=1777 tmpfs /tmp && cd / && \
        exec setpriv --reuid=4711 --regid=4712 --clear-groups java -cp /mnt Leak";
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script]).arg(classes());
    let mut java = Java::spawn_below(&mut command);
    let pid = java.pid().to_string();
    let mut jjleak = asking(&pid);
    jjleak.wait_for(" INFO process");
    jjleak.interrupt().assert_done();

    let root = PathBuf::from(format!("/proc/{pid}/root/tmp"));
    let names = fs::read_to_string(root.join("perf-1.map")).unwrap();
    assert!(names.contains("Interpreter"), "{names}");
    // The trigger file can be nowhere else: this user cannot write to /.
    assert!(!root.join(".attach_pid1").exists());
    assert_unharmed(&mut java);
}
