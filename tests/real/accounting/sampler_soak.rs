//! The library that samples malloc in a program with a thousand threads, children, libraries that come and go, and signals, while consumers
//! attach and detach: nothing fails, and once the program has freed all blocks, its table has those alone that the C library keeps.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use object::{Object, ObjectSymbol};

use crate::support::accounts::assert_nothing_lost;
use crate::support::bounded::{self, LONG};
use crate::support::compile;
use crate::support::jjleak::Jjleak;
use crate::support::lines::Lines;
use crate::support::privilege::{is_long, require_bpf};
use crate::support::process::Process;

/// Environment variable with the duration in minutes (`cargo xtask soak --minutes N`).
const MINUTES: &str = "JJLEAK_SOAK_MINUTES";
const SHORT: Duration = Duration::from_secs(8);
const LONGER: Duration = Duration::from_secs(120);
const THREADS: &str = "1000";
/// Functions of the program that allocate what it frees.
const OWN: [&str; 4] = ["allocate", "resize", "library_work", "begin"];

fn duration() -> Duration {
    let minutes = std::env::var(MINUTES).ok().and_then(|text| text.parse::<u64>().ok());
    let chosen = if is_long() { LONGER } else { SHORT };
    minutes.map_or(chosen, |minutes| Duration::from_secs(60 * minutes))
}

/// Bytes of a variable of the library in a process.
fn variable(pid: u32, name: &str) -> Vec<u8> {
    let library = compile::sampler_to_preload();
    let bytes = std::fs::read(&library).unwrap();
    let elf = object::File::parse(&*bytes).unwrap();
    let is_it = |symbol: &object::Symbol<'_, '_>| symbol.name().is_ok_and(|found| found.contains(name));
    let symbol = elf.symbols().find(is_it).unwrap_or_else(|| panic!("{name} is not in the library"));
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let first = maps.lines().find(|line| line.contains("libjjleak_preload.so")).unwrap();
    let base = u64::from_str_radix(first.split('-').next().unwrap(), 16).unwrap();
    let mut value = vec![0; usize::try_from(symbol.size()).unwrap()];
    let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
    memory.read_exact_at(&mut value, base + symbol.address()).unwrap();
    value
}

/// The same as numbers of 8 bytes.
fn words(pid: u32, name: &str) -> Vec<u64> {
    let bytes = variable(pid, name);
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// Addresses of the sampled blocks that live.
fn sampled_blocks(pid: u32) -> BTreeSet<u64> {
    words(pid, "sampled_blocks4SETS").into_iter().filter(|address| *address != 0).collect()
}

fn threads(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().count()
}

#[test]
fn a_program_with_a_thousand_threads_is_sampled_again_and_again() {
    require_bpf!();
    let (program, library) = compile::sampled_soak();
    let mut command = Command::new(program);
    command.args([THREADS, library.to_str().unwrap()]).env("LD_PRELOAD", compile::sampler_to_preload());
    command.env("JJLEAK_SAMPLE_BYTES", "20000");
    let mut process = Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut said = Lines::of("the soaked program", process.stdout.take().unwrap());
    let mut stdin = process.stdin.take().unwrap();
    assert_eq!(said.next(LONG), "ready");
    let pid = process.id();

    let always = Jjleak::attached(["--sampled", "-p", &pid.to_string(), "86400", "--format", "json"]);
    // Until all its probes were there, jjleak counted none.
    let of_the_beginning = sampled_blocks(pid);
    let (begin, mut rounds) = (Instant::now(), 0u32);
    while begin.elapsed() < duration() {
        let options = ["--sampled", "-p", &pid.to_string(), "1", "2", "--format", "json"];
        let mut jjleak = Jjleak::attached(options);
        if rounds.is_multiple_of(3) {
            // A consumer that crashes.
            jjleak.kill();
        } else if rounds % 3 == 1 {
            jjleak.wait();
            let report = jjleak.end().assert_done().report();
            assert!(report.allocated.bytes > 0, "nothing was sampled in round {rounds}");
        } else {
            jjleak.interrupt().assert_done();
        }
        rounds += 1;
    }
    stdin.write_all(b"stop\n").unwrap();
    let done = said.next(LONG);
    // Threads free what they have of the C library's after their function has returned.
    bounded::until(LONG, "all threads but the first end", || threads(pid) == 1);

    let (live, sampled) = (words(pid, "sampled_blocks4LIVE")[0], sampled_blocks(pid));
    let report = always.interrupt().assert_done().report();
    assert_nothing_lost(&report);
    println!(
        "{rounds} times attached; {done}; {live} samples live; {} had no place",
        words(pid, "sampled_blocks7DROPPED")[0]
    );
    assert!(done.starts_with("done "), "{done}");
    assert_eq!(sampled.len() as u64, live);
    // The C library keeps buffers of streams, and vectors of thread-local memory with stacks for later threads.
    let kept: Vec<_> = report.stacks.iter().filter(|stack| stack.live.objects > 0).collect();
    for stack in &kept {
        let names: Vec<_> = stack.frames.iter().map(|frame| frame.symbol.as_str()).collect();
        assert!(!names.iter().any(|name| OWN.contains(name)), "{names:?} was freed");
    }
    assert!(kept.len() <= sampled.len(), "{kept:#?} of {live} samples");
    let is_counted = sampled.difference(&of_the_beginning).next().is_some();
    assert!(!is_counted || !kept.is_empty(), "{live} samples live, none is counted");
    assert_eq!(variable(pid, "probes9SEMAPHORE")[..2], [0; 2], "consumers that are gone");
    stdin.write_all(b"end\n").unwrap();
    assert!(process.end(LONG).success());
}
