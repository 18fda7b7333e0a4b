//! Heap profiles that allocators write: jjleak reads what jeprof reads.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use jjleak::render::json::{Document, StackDocument};
use tempfile::TempDir;

use crate::support::bounded::SOON;
use crate::support::compile;
use crate::support::jjleak::{Ended, Jjleak, PROGRAM};
use crate::support::lines::Lines;
use crate::support::privilege::{require_library, require_program};
use crate::support::process::Process;

pub(crate) const JEMALLOC: &str = "libjemalloc.so.2";
pub(crate) const TCMALLOC: &str = "libtcmalloc.so.4";

/// Bytes by function.
type Bytes = BTreeMap<String, f64>;

/// The profile that jemalloc writes of the fixture at its end.
fn written_by_jemalloc(folder: &TempDir) -> PathBuf {
    all_written_by_jemalloc(folder, "prof_final:true").remove(0)
}

/// The profiles that jemalloc writes of the fixture, in their order.
pub(crate) fn all_written_by_jemalloc(folder: &TempDir, when: &str) -> Vec<PathBuf> {
    let prefix = folder.path().join("jeprof");
    let options = format!(
        "prof:true,prof_accum:true,lg_prof_sample:15,prof_prefix:{},{when}",
        prefix.to_str().unwrap()
    );
    let mut command = Command::new(compile::sampled());
    assert!(command.env("LD_PRELOAD", JEMALLOC).env("MALLOC_CONF", options).status().unwrap().success());
    let files = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let is_profile = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "heap");
    let mut profiles: Vec<_> = files.filter(is_profile).collect();
    // They are numbered: `jeprof.PID.NUMBER.iNUMBER.heap`.
    let number =
        |path: &PathBuf| -> u32 { path.to_str().unwrap().rsplit('.').nth(2).unwrap().parse().unwrap() };
    profiles.sort_by_key(number);
    profiles
}

/// The profile that gperftools writes of the fixture at its end.
pub(crate) fn written_by_gperftools(folder: &TempDir) -> PathBuf {
    let mut command = Command::new(compile::sampled());
    command.env("LD_PRELOAD", TCMALLOC).env("HEAPPROFILE", folder.path().join("app"));
    assert!(command.output().unwrap().status.success());
    let files = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|it| it == "heap")).max().unwrap()
}

/// What jeprof says of each function alone.
fn by_jeprof(option: &str, profile: &Path) -> Bytes {
    by_jeprof_with(&[option], profile)
}

fn by_jeprof_with(options: &[&str], profile: &Path) -> Bytes {
    by_script("jeprof", options, profile)
}

/// The same for `jeprof`, or for `google-pprof`, which it was made from.
fn by_script(script: &str, options: &[&str], profile: &Path) -> Bytes {
    let mut command = Command::new(script);
    command.args(options).args(["--text", "--show_bytes"]).arg(compile::sampled()).arg(profile);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let function = (*words.get(5)?).to_owned();
        Some((function, words[0].parse().ok()?))
    };
    text.lines().skip(1).filter_map(line).filter(|(_, bytes)| *bytes > 0.).collect()
}

/// The function that has called the allocator, if it is one of the fixture's.
fn caller(stack: &StackDocument) -> Option<&str> {
    let of_fixture = |symbol: &str| ["keep_small", "keep_large", "pass"].contains(&symbol);
    stack.frames.iter().map(|frame| frame.symbol.as_str()).find(|symbol| of_fixture(symbol))
}

fn by_jjleak(report: &Document, bytes: impl Fn(&StackDocument) -> u64) -> Bytes {
    let mut all = Bytes::new();
    for stack in &report.stacks {
        if let Some(caller) = caller(stack) {
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            let bytes = bytes(stack) as f64;
            *all.entry(caller.to_owned()).or_default() += bytes;
        }
    }
    all.retain(|_, bytes| *bytes > 0.);
    all
}

/// The scripts truncate, jjleak rounds each stack.
fn assert_equal(ours: &Bytes, theirs: &Bytes) {
    let of_fixture = theirs.iter().filter(|(function, _)| ours.contains_key(*function));
    assert_eq!(of_fixture.count(), ours.len(), "{ours:?}, oracle {theirs:?}");
    for (function, bytes) in ours {
        assert!((bytes - theirs[function]).abs() <= 2., "{function}: {bytes}, oracle {}", theirs[function]);
    }
}

#[test]
fn figures_of_a_jemalloc_profile_are_those_of_jeprof() {
    require_program!("jeprof");
    require_library!(JEMALLOC);
    let folder = tempfile::tempdir().unwrap();
    let profile = written_by_jemalloc(&folder);

    let report = Ended::of(["report", profile.to_str().unwrap(), "--format", "json"]).assert_done().report();

    let live = by_jjleak(&report, |stack| stack.live.bytes);
    assert_eq!(live.keys().collect::<Vec<_>>(), ["keep_large", "keep_small"]);
    assert_equal(&live, &by_jeprof("--inuse_space", &profile));
    let allocated = by_jjleak(&report, |stack| stack.allocated.bytes);
    assert_eq!(allocated.len(), 3);
    assert_equal(&allocated, &by_jeprof("--alloc_space", &profile));
    assert!(report.stacks.iter().all(|stack| stack.live_error.is_some()));
    let lines = report.stacks.iter().flat_map(|stack| &stack.frames);
    let lines: Vec<_> = lines.filter(|frame| frame.symbol == "keep_small").map(|frame| frame.line).collect();
    assert!(!lines.is_empty() && lines.iter().all(|line| *line > 0), "{lines:?}");
}

#[test]
fn figures_of_a_gperftools_profile_are_those_of_google_pprof() {
    require_program!("google-pprof");
    require_library!(TCMALLOC);
    let folder = tempfile::tempdir().unwrap();
    let profile = written_by_gperftools(&folder);

    let report = Ended::of(["report", profile.to_str().unwrap(), "--format", "json"]).assert_done().report();

    let live = by_jjleak(&report, |stack| stack.live.bytes);
    assert_eq!(live.keys().collect::<Vec<_>>(), ["keep_large", "keep_small"]);
    assert_equal(&live, &by_script("google-pprof", &["--inuse_space"], &profile));
    let allocated = by_jjleak(&report, |stack| stack.allocated.bytes);
    assert_eq!(allocated.len(), 3);
    assert_equal(&allocated, &by_script("google-pprof", &["--alloc_space"], &profile));
}

#[test]
fn source_lines_have_the_figures_of_jeprof() {
    require_program!("jeprof");
    require_library!(JEMALLOC);
    let folder = tempfile::tempdir().unwrap();
    let profile = written_by_jemalloc(&folder);
    // Its own figure, that with callees, and the number of the line.
    let lines = |text: &str, unit: &str, end: &str| -> Vec<[String; 3]> {
        let words = |line: &str| {
            let line = line.replace(unit, "").replace(end, " ");
            let words: Vec<_> = line.split_whitespace().take(3).map(str::to_owned).collect();
            <[String; 3]>::try_from(words).ok().filter(|[_, _, line]| line.parse::<u32>().is_ok())
        };
        text.lines().filter_map(words).filter(|[_, through, _]| through != ".").collect()
    };

    let ended = Ended::of(["report", profile.to_str().unwrap(), "--list", "^keep_"]).assert_done();
    let mut jeprof = Command::new("jeprof");
    let jeprof = jeprof.arg("--list=^keep_").arg(compile::sampled()).arg(&profile).output().unwrap();

    let mut ours = lines(&ended.stdout, "MiB", "\0");
    let mut theirs = lines(&String::from_utf8(jeprof.stdout).unwrap(), "MB", ":");
    ours.sort();
    theirs.sort();
    assert_eq!((ours.len(), &ours), (2, &theirs), "{}", ended.stdout);
    let source = "kept[index] = malloc(200);";
    assert!(ended.stdout.lines().any(|line| line.ends_with(source)), "{}", ended.stdout);
    Ended::of(["report", profile.to_str().unwrap(), "--list", "nowhere"]).assert_failed(
        1,
        "--list nowhere: no function of the profile matches",
        "choose from the functions that --outstanding shows",
    );
}

#[test]
fn a_profile_of_a_program_that_is_gone_has_its_figures_and_says_so() {
    require_program!("jeprof");
    require_library!(JEMALLOC);
    let folder = tempfile::tempdir().unwrap();
    let profile = written_by_jemalloc(&folder);
    let text = fs::read_to_string(&profile).unwrap();
    let program = compile::sampled().to_str().unwrap();
    fs::write(&profile, text.replace(program, "/nowhere/sampled")).unwrap();

    let ended = Ended::of(["report", profile.to_str().unwrap(), "--format", "json"]).assert_done();

    let report = ended.report();
    assert!(report.live.bytes > 0);
    let modules: Vec<_> = report.stacks.iter().flat_map(|stack| &stack.frames).map(|it| &it.module).collect();
    assert!(modules.iter().any(|module| *module == "/nowhere/sampled"), "{modules:?}");
    let said = ended.stderr.join("\n");
    assert!(said.contains("no names for code in /nowhere/sampled: No such file"), "{said}");
}

#[test]
fn the_difference_of_two_jemalloc_profiles_is_that_of_jeprof() {
    require_program!("jeprof");
    require_library!(JEMALLOC);
    let folder = tempfile::tempdir().unwrap();
    let profiles = all_written_by_jemalloc(&folder, "prof_final:true,lg_prof_interval:18");
    let [first, .., last] = &profiles[..] else { panic!("{profiles:?}") };
    let base = format!("--base={}", first.to_str().unwrap());

    let report =
        Ended::of(["report", last.to_str().unwrap(), &base, "--format", "json"]).assert_done().report();

    let live = by_jjleak(&report, |stack| stack.live.bytes);
    assert!(!live.is_empty());
    assert_equal(&live, &by_jeprof_with(&["--inuse_space", &base], last));
    assert!(live.values().sum::<f64>() < by_jeprof("--inuse_space", last).values().sum());
    // The newest is the one that was written at the end.
    let pattern = folder.path().join("jeprof.*.heap");
    let latest = Ended::of(["report", "--latest", pattern.to_str().unwrap(), "--format", "json"]);
    let of_last = Ended::of(["report", last.to_str().unwrap(), "--format", "json"]).assert_done().report();
    assert_eq!(latest.assert_done().report().live, of_last.live);
}

#[test]
fn a_compressed_profile_is_the_one_that_was_compressed_also_from_stdin() {
    require_library!(JEMALLOC);
    require_program!("gzip");
    require_program!("zstd");
    let folder = tempfile::tempdir().unwrap();
    let plain = written_by_jemalloc(&folder);
    let compressed = ["gzip", "zstd"].map(|program| {
        assert!(Command::new(program).args(["-q", "-k"]).arg(&plain).status().unwrap().success());
        let extension = if program == "gzip" { "heap.gz" } else { "heap.zst" };
        plain.with_extension(extension)
    });
    let read = |name: &str, stdin: Stdio| {
        let mut jjleak = Command::new(PROGRAM);
        let output = jjleak.args(["report", "--format", "json", name]).stdin(stdin).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let report: Document = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{said}"));
        let bytes = by_jjleak(&report, |stack| stack.live.bytes);
        (report.live, report.stacks.len(), bytes)
    };

    let expected = read(plain.to_str().unwrap(), Stdio::null());
    assert!(expected.1 > 1);
    for file in compressed {
        assert_eq!(read(file.to_str().unwrap(), Stdio::null()), expected, "{}", file.display());
        assert_eq!(read("-", fs::File::open(&file).unwrap().into()), expected, "{}, stdin", file.display());
    }
}

#[test]
fn a_profile_of_a_server_is_that_of_the_file_and_two_instances_add_up() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("app.heap");
    fs::write(
        &file,
        "heap profile: 3: 3000 [ 10: 10000] @ heapprofile\n  2: 2000 [ 7: 7000] @ 0x401000 0x402000\n  1: 1000 [ 3: 3000] @ \
         0x401000 0x403000\n\nMAPPED_LIBRARIES:\n00400000-00500000 r-xp 00000000 00:00 0 /none\n",
    )
    .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/debug/pprof/heap", listener.local_addr().unwrap());
    let body = fs::read(&file).unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            asked.push(byte[0]);
        }
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len())
            .unwrap();
        stream.write_all(&body).unwrap();
        String::from_utf8(asked).unwrap()
    });
    let file = file.to_str().unwrap();
    let report = |arguments: &[&str]| {
        let ended = Ended::of([&["report", "--format", "json"], arguments].concat()).assert_done();
        ended.reports().remove(0)
    };

    let from_server = report(&[&address, "--header", "Authorization: Bearer secret"]);
    let asked = server.join().unwrap().to_lowercase();
    let (from_file, both) = (report(&[file]), report(&["--merge", file, file]));

    assert!(
        asked.starts_with("get /debug/pprof/heap ") && asked.contains("authorization: bearer secret"),
        "{asked}"
    );
    assert_eq!((from_server.live, from_server.stacks.len()), (from_file.live, 2));
    assert_eq!((both.live.bytes, both.stacks.len()), (6000, 2));
}

/// Answers one request by TLS with the file `profile`, as `localhost`, and says its port.
const TLS_SERVER: &str = r"
import http.server, ssl
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = open('profile', 'rb').read()
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
server = http.server.HTTPServer(('127.0.0.1', 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain('server.pem', 'server.key')
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.handle_request()
";

/// A certificate of `localhost`, by an authority of its own, in `authority.pem`.
const CERTIFICATES: &str = r"
openssl req -x509 -newkey rsa:2048 -nodes -keyout authority.key -out authority.pem -days 2 -subj /CN=authority \
    -addext basicConstraints=critical,CA:TRUE
openssl req -newkey rsa:2048 -nodes -keyout server.key -out request.pem -subj /CN=localhost
printf 'subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\n' > extensions
openssl x509 -req -in request.pem -CA authority.pem -CAkey authority.key -CAcreateserial -days 2 \
    -extfile extensions -out server.pem
";

#[test]
fn servers_are_known_by_the_certificates_that_the_system_trusts() {
    require_program!("openssl");
    require_program!("python3");
    let folder = tempfile::tempdir().unwrap();
    let in_folder = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(folder.path());
        command
    };
    assert!(in_folder("sh", &["-ec", CERTIFICATES]).output().unwrap().status.success());
    let profile = "heap profile: 2: 2000 [ 7: 7000] @ heapprofile\n  2: 2000 [ 7: 7000] @ 0x401000 0x402000\n\nMAPPED_LIBRARIES:\n";
    fs::write(folder.path().join("profile"), profile).unwrap();
    let read = |trusted: Option<&Path>| {
        let mut server = Process::spawn(in_folder("python3", &["-c", TLS_SERVER]).stdout(Stdio::piped()));
        let port = Lines::of("the server", server.stdout.take().unwrap()).next(SOON);
        let mut jjleak = Command::new(PROGRAM);
        jjleak.args(["report", "--format", "json", &format!("https://localhost:{port}/profile")]);
        trusted.map(|trusted| jjleak.env("SSL_CERT_FILE", trusted));
        jjleak.stdout(Stdio::piped());
        Jjleak::start(jjleak).end()
    };

    let refused = read(None);
    let said = refused.stderr.iter().filter(|line| line.contains("certificate")).count();
    assert_eq!(said, 1, "the library's own message is left out: {:?}", refused.stderr);
    refused.assert_failed(1, "invalid peer certificate", "check the address");
    let report = read(Some(&folder.path().join("authority.pem"))).assert_done().report();
    assert_eq!(report.live.bytes, 2000);
}
