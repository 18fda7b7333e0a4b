//! Random calls from several threads, replayed by a model: the live blocks at the end are the same.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::accounts::assert_nothing_lost;
use crate::support::bounded::{LONG, SOON};
use crate::support::compile;
use crate::support::jjleak::Jjleak;
use crate::support::lines::Lines;
use crate::support::privilege::{is_long, require_bpf};
use crate::support::process::Process;
use crate::support::tables;

/// Live blocks: size by address.
type Live = BTreeMap<u64, u64>;

/// One line of the program's log.
struct Event {
    number: u64,
    what: String,
    address: u64,
    size: u64,
}

fn parse(line: &str) -> Event {
    let words: Vec<_> = line.split(' ').collect();
    let [number, _thread, what, address, size] = words[..] else { panic!("no event: {line}") };
    let number_of = |word: &str| word.parse::<u64>().unwrap();
    Event {
        number: number_of(number),
        what: what.to_owned(),
        address: number_of(address),
        size: number_of(size),
    }
}

/// Live blocks after these events, by the rules of malloc(3).
fn replay(log: &Path) -> Live {
    let text = fs::read_to_string(log).unwrap();
    let mut events: Vec<_> = text.lines().map(parse).collect();
    events.sort_by_key(|event| event.number);
    let mut live = Live::new();
    for Event { what, address, size, number } in events {
        match what.as_str() {
            "dies" | "resizing" => assert_eq!(live.remove(&address), Some(size), "event {number}"),
            "born" | "kept" | "resized" if address != 0 => {
                assert_eq!(live.insert(address, size), None, "event {number}");
            }
            "resized" => assert_eq!(size, 0, "event {number}"),
            other => panic!("event {number}: {other} at {address}"),
        }
    }
    live
}

fn assert_replayed(seed: u32, steps: u32) {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let mut command = Command::new(compile::differential());
    command.args([seed, steps].map(|number| number.to_string())).arg(&log);
    let mut program = Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut output = Lines::of("differential", program.stdout.take().unwrap());
    let mut input = program.stdin.take().unwrap();
    output.skip_to("ready", SOON);
    let jjleak = Jjleak::attached(["-p", &program.id().to_string(), "3600", "--format", "json"]);

    input.write_all(b"\n").unwrap();
    output.skip_to("done", LONG);
    let live: Live = tables::blocks(jjleak.pid()).into_iter().collect();
    let report = jjleak.interrupt().assert_done().report();

    let expected = replay(&log);
    assert!(expected.len() > 500, "only {} blocks live in the end", expected.len());
    assert_eq!(live, expected, "what lives (left) is not what the log says (right), with seed {seed}");
    assert_eq!((report.live.objects, report.unknown_frees), (expected.len() as u64, 0));
    assert_eq!(report.live.bytes, expected.values().sum::<u64>());
    assert_nothing_lost(&report);
}

#[test]
fn random_calls_of_four_threads_leave_what_a_model_says() {
    require_bpf!();
    let (seeds, steps) = if is_long() { (1..=40, 100_000) } else { (1..=3, 20_000) };
    for seed in seeds {
        assert_replayed(seed, steps);
    }
}
