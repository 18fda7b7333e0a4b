//! The helper process that talks to the JVM. It takes on the JVM's user and root directory before it touches
//! anything that the JVM controls.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Stdin, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sys::signal::{SigSet, Signal as Caught};
use nix::sys::stat::Mode;
use nix::unistd::{
    Gid, Uid, UnlinkatFlags, chdir, chroot, fchdir, setgroups, setresgid, setresuid, unlinkat,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::{Pid as RawPid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::halted::Progress;
use super::question::Question;
use super::signal::catches_sigquit;
use crate::perf_map::PerfMap;
use crate::processes::{Credentials, Pid, Process};

/// First argument that makes jjleak run as this process.
pub const VERB: &str = "ask-jvm";

/// Argument that allows the process to send the JVM a signal, and the one that does not.
pub(super) const WITH_SIGNAL: &str = "signal";
pub(super) const WITHOUT_SIGNAL: &str = "socket";

/// Interval at which to check for the JVM's listener. The JDK's own tools use the same.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time left to a JVM that has been sent SIGQUIT when jjleak stops; it answers within milliseconds.
const GRACE: Duration = Duration::from_millis(500);
/// Sends the request to the JVM that the arguments name, and prints the answer on stdout, or the reason if it fails. Returns
/// whether it succeeded. It stops when all writers of its stdin are gone, silently if there is nothing to
/// report.
#[must_use]
pub fn run(arguments: &[String]) -> bool {
    // It ends by itself soon, and must not leave its file behind.
    let _ = SigSet::from(Caught::SIGTERM).thread_block();
    let outcome = parse(arguments).ok_or_else(|| "invalid arguments".to_owned());
    let outcome = outcome.and_then(|arguments| ask(&arguments));
    let (Ok(said) | Err(said)) = &outcome;
    // If nobody reads stdout, nobody needs the answer.
    let _ = writeln!(io::stdout(), "{said}");
    outcome.is_ok()
}

/// Arguments of the helper process.
struct Arguments {
    question: Question,
    pid: Pid,
    start_time: u64,
    may_signal: bool,
    /// Arguments of the request.
    words: Vec<String>,
}

fn parse(arguments: &[String]) -> Option<Arguments> {
    let [question, pid, start_time, access, words @ ..] = arguments else { return None };
    Some(Arguments {
        question: Question::named(question)?,
        pid: Pid::new(pid.parse().ok()?)?,
        start_time: start_time.parse().ok()?,
        may_signal: access == WITH_SIGNAL,
        words: words.to_vec(),
    })
}

fn ask(arguments: &Arguments) -> Result<String, String> {
    let Arguments { question, pid, start_time, may_signal, ref words } = *arguments;
    let deadline = Instant::now() + question.time_limit();
    let target = Target::open(pid, start_time, question)?;
    target.enter()?;
    if question == Question::LoadAgent {
        let library = words.first().ok_or("no library is named")?;
        File::open(library)
            .map_err(|error| format!("its user cannot open {library} in its root directory: {error}"))?;
    }
    let socket = PathBuf::from(format!("/tmp/.java_pid{}", target.own_pid));
    let stream = match connect(&socket, target.credentials)? {
        Some(stream) => stream,
        None if may_signal => target.start_listener(&socket, deadline, &io::stdin())?,
        None => return Err("its attach listener is not running, and it must not be sent SIGQUIT".to_owned()),
    };
    let answer = request(stream, question, words, deadline, io::stdin())?;
    if answer.contains(question.wanted()) {
        Ok(answer)
    } else {
        Err(format!("it answered: {}", answer.lines().next().unwrap_or("nothing")))
    }
}

/// The JVM, held by descriptors that keep referring to it.
struct Target {
    own_pid: Pid,
    process: OwnedFd,
    credentials: Credentials,
    root: File,
    /// Its working directory.
    folder: File,
    /// Its `/proc/PID/status`; each read returns the current state.
    status: File,
    progress: Progress,
}

impl Target {
    fn open(pid: Pid, start_time: u64, question: Question) -> Result<Self, String> {
        let raw = i32::try_from(pid.number().get()).ok().and_then(RawPid::from_raw);
        let raw = raw.ok_or("the PID is invalid")?;
        let held = pidfd_open(raw, PidfdFlags::empty()).map_err(|error| error.to_string())?;
        let process = Process::open(pid).map_err(|error| error.to_string())?;
        if process.start_time != start_time {
            return Err("the process has ended".to_owned());
        }
        let folder = |name| {
            OpenOptions::new()
                .read(true)
                .custom_flags((OFlag::O_PATH | OFlag::O_DIRECTORY).bits())
                .open(pid.proc_file(name))
                .map_err(|error| format!("cannot open /proc/{pid}/{name}: {error}"))
        };
        // Examined with all privileges, because the JVM would write to it.
        if question == Question::PerfMap
            && let Some(refusal) = PerfMap::refusal(&process)
        {
            return Err(format!("{} is in the way: {refusal}", PerfMap::path(&process).display()));
        }
        Ok(Self {
            own_pid: process.container_pid.unwrap_or(pid),
            process: held,
            credentials: Credentials::of(pid).map_err(|error| error.to_string())?,
            root: folder("root")?,
            folder: folder("cwd")?,
            status: File::open(pid.proc_file("status")).map_err(|error| error.to_string())?,
            progress: Progress::of(pid).map_err(|error| error.to_string())?,
        })
    }

    /// Switches irrevocably to the JVM's root directory, user and group.
    fn enter(&self) -> Result<(), String> {
        let become_it = || {
            let (user, group) = (Uid::from_raw(self.credentials.user), Gid::from_raw(self.credentials.group));
            fchdir(&self.root)?;
            chroot(".")?;
            chdir("/")?;
            setgroups(&[group])?;
            setresgid(group, group, group)?;
            setresuid(user, user, user)
        };
        become_it().map_err(|errno| format!("cannot switch to its user and root directory: {errno}"))
    }

    /// Starts the JVM's listener: SIGQUIT does that if a file with this name exists and belongs to the JVM's
    /// user.
    fn start_listener(
        &self,
        socket: &Path,
        mut deadline: Instant,
        stop: &Stdin,
    ) -> Result<UnixStream, String> {
        // A stopped process would get the signal at some later time.
        if let Some(obstacle) = self.progress.obstacle() {
            return Err(format!("its attach listener is not running, and SIGQUIT was not sent: {obstacle}"));
        }
        let trigger = Trigger::create(self)?;
        // SIGQUIT ends a JVM that has not installed its handler yet.
        if !catches_sigquit(&self.status).map_err(|error| error.to_string())? {
            return Err("it does not catch SIGQUIT, which would end it".to_owned());
        }
        pidfd_send_signal(self.process.as_fd(), Signal::QUIT).map_err(|error| format!("SIGQUIT: {error}"))?;
        let mut is_stopping = false;
        let outcome = loop {
            match connect(socket, self.credentials) {
                Ok(None) if Instant::now() < deadline => {}
                Ok(None) => break Err("its attach listener did not start after SIGQUIT".to_owned()),
                Ok(Some(stream)) => break Ok(stream),
                Err(why) => break Err(why),
            }
            if is_stopping {
                poll_for(&mut [], POLL_INTERVAL);
            } else if poll_for(&mut [PollFd::new(stop, PollFlags::IN)], POLL_INTERVAL) {
                is_stopping = true;
                deadline = deadline.min(Instant::now() + GRACE);
            }
        };
        // Without the file, a JVM that handles the signal later would print all threads' stacks.
        outcome.map_err(|why| match trigger.map(Trigger::leave) {
            Some(path) => format!("{why}; {path} was left in place because SIGQUIT has been sent"),
            None => why,
        })
    }
}

/// Returns whether one of the descriptors becomes ready in time.
fn poll_for(what: &mut [PollFd<'_>], time: Duration) -> bool {
    let time = Timespec::try_from(time).ok();
    poll(what, time.as_ref()).is_ok_and(|ready| ready > 0)
}

/// The file that tells a JVM what SIGQUIT is for. Removed on drop.
struct Trigger<'a> {
    folder: BorrowedFd<'a>,
    path: PathBuf,
}

impl<'a> Trigger<'a> {
    /// Creates the file where the JVM expects it: in its working directory, or else in `/tmp`. An existing
    /// one is somebody else's, and serves as well.
    fn create(target: &'a Target) -> Result<Option<Self>, String> {
        let name = format!(".attach_pid{}", target.own_pid);
        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        let places =
            [(target.folder.as_fd(), PathBuf::from(&name)), (AT_FDCWD, Path::new("/tmp").join(&name))];
        let mut outcome = Errno::ENOENT;
        for (folder, path) in places {
            match openat(folder, &path, flags, Mode::S_IRUSR | Mode::S_IWUSR) {
                Ok(_) => return Ok(Some(Self { folder, path })),
                Err(Errno::EEXIST) => return Ok(None),
                Err(errno) => outcome = errno,
            }
        }
        Err(format!("cannot create {name}: {outcome}"))
    }

    /// Leaves the file in place, and returns its path.
    fn leave(self) -> String {
        let path = self.path.display().to_string();
        std::mem::forget(self);
        if path.starts_with('/') { path } else { format!("{path} in its working directory") }
    }
}

impl Drop for Trigger<'_> {
    fn drop(&mut self) {
        // The JVM, or somebody else, may have removed it.
        let _ = unlinkat(self.folder, &self.path, UnlinkatFlags::NoRemoveDir);
    }
}

/// Connects to the JVM's socket; `None` if nobody listens on it, or the listener is busy. The socket must
/// belong to the JVM's user.
fn connect(path: &Path, credentials: Credentials) -> Result<Option<UnixStream>, String> {
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("{}: {error}", path.display())),
    };
    if !metadata.file_type().is_socket() {
        return Err(format!("{} is not a socket", path.display()));
    }
    if metadata.uid() != credentials.user {
        return Err(format!("{} belongs to user {}", path.display(), metadata.uid()));
    }
    let address = SocketAddrUnix::new(path).map_err(|error| error.to_string())?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|error| error.to_string())?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) => Ok(Some(UnixStream::from(socket))),
        // A stale socket, or a full backlog.
        Err(rustix::io::Errno::CONNREFUSED | rustix::io::Errno::AGAIN | rustix::io::Errno::NOENT) => Ok(None),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

/// Sends the request and reads the answer: a line with a number, 0 for success, and text. Returns the text.
fn request(
    mut stream: UnixStream,
    question: Question,
    words: &[String],
    deadline: Instant,
    stop: impl AsFd,
) -> Result<String, String> {
    let failed = |error: io::Error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "it did not answer in time".to_owned(),
        _ => error.to_string(),
    };
    stream.set_nonblocking(false).map_err(failed)?;
    let limit = |stream: &UnixStream| {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        stream.set_read_timeout(Some(left)).and_then(|()| stream.set_write_timeout(Some(left)))
    };
    limit(&stream).map_err(failed)?;
    stream.write_all(question.message(words).as_bytes()).map_err(failed)?;
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    while Instant::now() < deadline && (answer.len() as u64) < question.longest() {
        limit(&stream).map_err(failed)?;
        let mut both = [PollFd::new(&stream, PollFlags::IN), PollFd::new(&stop, PollFlags::IN)];
        poll_for(&mut both, deadline.saturating_duration_since(Instant::now()));
        if !both[1].revents().is_empty() {
            return Err(String::new());
        }
        let length = stream.read(&mut part).map_err(failed)?;
        if length == 0 {
            return success(&answer);
        }
        answer.extend(part.iter().take(length));
    }
    Err("it did not answer in time".to_owned())
}

fn success(answer: &[u8]) -> Result<String, String> {
    let answer = String::from_utf8_lossy(answer);
    let (result, text) = answer.split_once('\n').unwrap_or((&answer, ""));
    match (result.trim(), text.lines().next().unwrap_or_default()) {
        ("0", _) => Ok(text.to_owned()),
        (_, "") => Err("its answer was empty".to_owned()),
        (_, why) => Err(format!("it answered: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_begins_with_its_outcome() {
        assert_eq!(success(b"0\nDumped\n"), Ok("Dumped\n".to_owned()));
        let unknown = b"1\njava.lang.IllegalArgumentException: Unknown diagnostic command\n";
        assert!(success(unknown).unwrap_err().ends_with("Unknown diagnostic command"));
        assert!(success(b"").is_err() && success(b"\xff\n").is_err());
    }

    #[test]
    fn a_jvm_that_never_answers_is_left_alone_at_the_deadline() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (stop, parent) = UnixStream::pair().unwrap();
        let outcome = request(ours, Question::PerfMap, &[], Instant::now() + Duration::from_millis(20), stop);
        assert_eq!(outcome, Err("it did not answer in time".to_owned()));
        drop((theirs, parent));
    }

    #[test]
    fn nothing_is_waited_for_when_nobody_wants_to_know() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (stop, parent) = UnixStream::pair().unwrap();
        drop(parent);
        assert_eq!(
            request(ours, Question::PerfMap, &[], Instant::now() + Question::PerfMap.time_limit(), stop),
            Err(String::new())
        );
        drop(theirs);
    }

    #[test]
    fn a_jvm_that_never_stops_to_answer_is_not_listened_to_for_ever() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let babble = std::thread::spawn(move || while theirs.write_all(&[b'0'; 4096]).is_ok() {});
        let (stop, parent) = UnixStream::pair().unwrap();
        assert!(
            request(ours, Question::PerfMap, &[], Instant::now() + Question::PerfMap.time_limit(), stop)
                .is_err()
        );
        drop(parent);
        babble.join().unwrap();
    }

    #[test]
    fn what_is_no_socket_of_the_jvms_is_not_connected_to() {
        let folder = tempfile::tempdir().unwrap();
        let own = Credentials { user: Uid::effective().as_raw(), group: 0 };
        let path = folder.path().join("socket");
        assert!(connect(&path, own).unwrap().is_none());
        nix::unistd::mkfifo(&path, Mode::S_IRUSR).unwrap();
        assert!(connect(&path, own).unwrap_err().ends_with("is not a socket"));
        fs::remove_file(&path).unwrap();
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(connect(&path, own).unwrap().is_some());
        assert!(connect(&path, Credentials { user: own.user + 1, ..own }).is_err());
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(connect(&link, own).unwrap_err().ends_with("is not a socket"));
        drop(listener);
        assert!(connect(&path, own).unwrap().is_none());
    }
}
