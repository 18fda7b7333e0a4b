//! Output files of a run: each has the right name, is complete, conforms to its format, and has the right figures.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use jjleak::render::json::Document;
use prost::Message;

use crate::support::accounts::Accounts;
use crate::support::jjleak::{Ended, names_in};
use crate::support::ledger::Ledger;
use crate::support::privilege::require_bpf;

/// Profiles a scenario with many call sites. Returns the ended jjleak, the program's accounting, and the target's PID.
fn profile(options: &[&str]) -> (Ended, Accounts, u32) {
    let mut ledger = Ledger::start();
    let jjleak = ledger.attach(options);
    ledger.run("storm");
    (jjleak.interrupt().assert_done(), ledger.accounts(), ledger.pid())
}

#[test]
fn all_formats_agree() {
    require_bpf!();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();

    let options =
        ["--out", out, "--format", "text,json,svg,pprof,collapsed", "--by", "bytes,objects", "--full"];
    let (ended, accounts, pid) = profile(&options);

    let suffixes = ["collapsed", "json", "objects.collapsed", "objects.svg", "pb.gz", "svg", "txt"];
    assert_eq!(names_in(folder.path()), suffixes.map(|suffix| format!("jjleak-{pid}.{suffix}")));
    assert_eq!(ended.files(), [""; 0]);
    let file = |suffix| folder.path().join(format!("jjleak-{pid}.{suffix}"));
    assert_json(&file("json"), &accounts);
    assert_text(&file("txt"), &ended.stdout, &accounts);
    assert_svg(&file("svg"), &accounts, "bytes");
    assert_svg(&file("objects.svg"), &accounts, "objects");
    assert_collapsed(&file("collapsed"), &accounts, |account| account.live_bytes);
    assert_collapsed(&file("objects.collapsed"), &accounts, |account| account.live_objects);
    assert_pprof(&file("pb.gz"), &accounts);
}

#[test]
fn text_goes_to_stdout_and_a_flame_graph_beside_it_when_nothing_is_asked_for() {
    require_bpf!();

    let (ended, accounts, pid) = profile(&["-T", "3"]);

    assert!(ended.stdout.contains("] Top 3 stacks with outstanding allocations:"), "{}", ended.stdout);
    assert_eq!(ended.stdout.matches(" allocations from stack").count(), 3, "{}", ended.stdout);
    assert_eq!(ended.files(), [format!("jjleak-{pid}.svg")]);
    assert_svg(&ended.file(&format!("jjleak-{pid}.svg")), &accounts, "bytes");
    assert!(
        ended.stderr.iter().any(|line| line.ends_with(&format!("jjleak-{pid}.svg"))),
        "{:#?}",
        ended.stderr
    );
}

#[test]
fn a_file_name_is_the_name_of_one_file_and_the_stem_of_several() {
    require_bpf!();
    let mut ledger = Ledger::start();

    let one = ledger.attach(&["--out", "leak.html", "--format", "svg"]).interrupt().assert_done();
    let several = ledger.attach(&["--out", "leak", "--format", "svg,collapsed"]).interrupt().assert_done();

    assert_eq!(one.files(), ["leak.html"]);
    assert_eq!(several.files(), ["leak.collapsed", "leak.svg"]);
}

fn assert_json(file: &Path, accounts: &Accounts) {
    let text = fs::read_to_string(file).unwrap();
    let report: Document = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    accounts.assert_reported(&report);
}

/// The file contains the last report of stdout.
fn assert_text(file: &Path, stdout: &str, accounts: &Accounts) {
    let text = fs::read_to_string(file).unwrap();
    assert!(stdout.ends_with(&text), "not at the end of stdout: {text}");
    assert!(text.contains("] Top 9 stacks with outstanding allocations:"), "{text}");
    assert!(accounts.sites.keys().all(|site| text.contains(site.as_str())), "{text}");
}

/// The file is well-formed, opens with its root, and names every site with live blocks.
fn assert_svg(file: &Path, accounts: &Accounts, unit: &str) {
    let text = fs::read_to_string(file).unwrap();
    let mut titles = Vec::new();
    let mut reader = quick_xml::Reader::from_str(&text);
    loop {
        match reader.read_event().unwrap() {
            quick_xml::events::Event::Text(text) => titles.push(text.decode().unwrap().into_owned()),
            quick_xml::events::Event::Eof => break,
            _ => {}
        }
    }
    for (site, _) in accounts.sites.iter().filter(|(_, account)| account.live_objects > 0) {
        let named = |title: &String| title.contains(site.as_str()) && title.contains(unit);
        assert!(titles.iter().any(named), "no frame of {site} with its {unit} in {}", file.display());
    }
}

/// The lines, `root;..;site;leaf VALUE`, sum up to the live values of each site.
fn assert_collapsed(
    file: &Path,
    accounts: &Accounts,
    value: impl Fn(&crate::support::accounts::Account) -> u64,
) {
    let mut sums = BTreeMap::<String, u64>::new();
    for line in fs::read_to_string(file).unwrap().lines() {
        let (stack, number) = line.rsplit_once(' ').unwrap();
        let site = stack.rsplit(';').nth(1).unwrap();
        *sums.entry(site.to_owned()).or_default() += number.parse::<u64>().unwrap();
    }
    let live = accounts.sites.iter().filter(|(_, account)| account.live_objects > 0);
    assert_eq!(sums, live.map(|(site, account)| (site.clone(), value(account))).collect());
}

/// The compared part of a pprof profile (profile.proto).
#[derive(Message)]
struct Pprof {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
}

#[derive(Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    name: i64,
}

#[derive(Message)]
struct Sample {
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
}

/// The profile has the program's totals and names its sites.
fn assert_pprof(file: &Path, accounts: &Accounts) {
    let mut bytes = Vec::new();
    GzDecoder::new(fs::File::open(file).unwrap()).read_to_end(&mut bytes).unwrap();
    let pprof = Pprof::decode(&*bytes).unwrap();
    let total = |name: &str| {
        let named = |kind: &ValueType| pprof.string_table[usize::try_from(kind.name).unwrap()] == name;
        let column = pprof.sample_type.iter().position(named).unwrap();
        pprof.sample.iter().map(|sample| u64::try_from(sample.value[column]).unwrap()).sum::<u64>()
    };
    let (live, allocated) = (accounts.live(), accounts.allocated());
    assert_eq!((total("inuse_space"), total("inuse_objects")), (live.bytes, live.objects));
    assert_eq!((total("alloc_space"), total("alloc_objects")), (allocated.bytes, allocated.objects));
    assert!(accounts.sites.keys().all(|site| pprof.string_table.contains(site)));
}
