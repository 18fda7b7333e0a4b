//! Pages and pictures in a browser: they show the right content, respond to the pointer and the keyboard, make no requests, and
//! cause no errors.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;

use crate::support::bounded::SOON;
use crate::support::browser::Browser;
use crate::support::compile;
use crate::support::jjleak::{Ended, Jjleak};
use crate::support::ledger::Ledger;
use crate::support::lines::Lines;
use crate::support::privilege::require_bpf;
use crate::support::process::Process;

/// Profiles a scenario into one file of this format.
fn profiled(format: &str, folder: &Path) -> (PathBuf, Ended) {
    let file = folder.join(format!("file.{format}"));
    let mut ledger = Ledger::start();
    let jjleak: Jjleak = ledger.attach(&["--format", format, "--out", file.to_str().unwrap()]);
    ledger.run("storm");
    (file, jjleak.interrupt().assert_done())
}

/// Expression for the frame of the flame graph with this text.
fn frame(name: &str) -> String {
    format!("[...document.querySelectorAll('#flame div')].find(it => it.textContent === '{name}')")
}

#[test]
fn a_page_is_searched_zoomed_and_explained_by_its_tooltip() {
    require_bpf!();
    let folder = tempfile::tempdir().unwrap();
    let (page, _) = profiled("html", folder.path());
    let mut browser = Browser::open(&page);
    assert!(browser.evaluate("document.querySelectorAll('#flame div').length").as_u64() > Some(5));
    assert_eq!(browser.evaluate("document.querySelectorAll('#sites details').length > 3"), json!(true));

    // Hovering over a frame shows its tooltip.
    browser.point(&frame("main"), false);
    let tip = browser.evaluate("document.getElementById('tip').innerText");
    let tip = tip.as_str().unwrap();
    assert!(tip.starts_with("main\n") && tip.contains("% of all live bytes"), "{tip}");
    assert_eq!(browser.evaluate("document.getElementById('tip').hidden"), json!(false));

    // A click zooms, Escape zooms out.
    let width = format!("Math.round({}.getBoundingClientRect().width)", frame("malloc"));
    let before = browser.evaluate(&width).as_u64();
    browser.point(&frame("malloc"), true);
    assert!(browser.evaluate(&width).as_u64() > before, "{before:?}");
    assert_eq!(browser.evaluate("document.getElementById('reset').disabled"), json!(false));
    browser.press("Escape");
    assert_eq!(browser.evaluate(&width).as_u64(), before);

    // A search highlights its matches and shows their share.
    browser.point("document.getElementById('search')", true);
    browser.type_text("^main$");
    let found = browser.evaluate("[...document.querySelectorAll('#flame .found')].map(it => it.textContent)");
    assert_eq!(found, json!(["main"]));
    let matched = browser.evaluate("document.getElementById('matched').textContent");
    assert!(matched.as_str().unwrap().starts_with("matched: 100.00 %"), "{matched}");

    // In the inverted view, the allocation function is at the top.
    browser.press("Escape");
    browser.point("document.getElementById('invert')", true);
    let top = "[...document.querySelectorAll('#flame div')].filter(it => it.style.top === '19px').map(it => it.textContent)";
    let top = browser.evaluate(top).to_string();
    assert!(top.contains("malloc") && !top.contains("main"), "{top}");
    browser.assert_quiet();
}

#[test]
fn a_function_called_like_a_script_stays_text() {
    let folder = tempfile::tempdir().unwrap();
    let name = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">";
    let (profile, page) = (folder.path().join("hostile.pb"), folder.path().join("hostile.html"));
    std::fs::write(&profile, hostile::profile(name)).unwrap();
    let arguments =
        ["report", profile.to_str().unwrap(), "--format", "html", "--out", page.to_str().unwrap()];
    Ended::of(arguments).assert_done();

    let mut browser = Browser::open(&page);

    let label = browser.evaluate("[...document.querySelectorAll('#flame div')].at(-1).textContent");
    assert_eq!(label, json!(name));
    browser.point("[...document.querySelectorAll('#flame div')].at(-1)", false);
    assert_eq!(browser.evaluate("document.querySelector('#tip b').textContent"), json!(name));
    assert_eq!(browser.evaluate("document.querySelector('#sites details summary').textContent"), json!(name));
    assert_eq!(browser.evaluate("document.images.length + document.scripts.length"), json!(2));
    assert_eq!(browser.evaluate("document.title.startsWith('jjleak: ')"), json!(true));
    browser.assert_quiet();
}

/// Hovers over frames of a flame graph, zooms, searches, and goes back, as a user does. `frame` is the beginning of the title of
/// a frame that is narrower than the picture.
fn assert_picture_answers(picture: &Path, frame: &str) {
    let mut browser = Browser::open(picture);
    let element = |title: &str| {
        format!(
            "[...document.querySelectorAll('#frames g')].find(it => it.querySelector('title').textContent.startsWith('{title}'))"
        )
    };
    let text = |browser: &mut Browser, id: &str| {
        let text = browser.evaluate(&format!("document.getElementById('{id}').textContent"));
        text.as_str().unwrap().to_owned()
    };

    // Hovering over a frame shows its title, also in a separate line.
    browser.point(&element(frame), false);
    let details = text(&mut browser, "details");
    assert!(details.contains(frame) && details.contains(" bytes"), "{details:?}");

    // A click zooms, and another zooms out.
    let width = format!("Math.round({}.querySelector('rect').getBoundingClientRect().width)", element(frame));
    let before = browser.evaluate(&width).as_u64();
    browser.point(&element(frame), true);
    assert!(browser.evaluate(&width).as_u64() > before, "{before:?}");
    browser.point("document.getElementById('unzoom')", true);
    assert_eq!(browser.evaluate(&width).as_u64(), before);

    // A search prompts for a term, highlights its matches, shows their share, and can be ended.
    let name = frame.split(' ').next().unwrap();
    browser.click_and_answer("document.getElementById('search')", &format!("^{name}"));
    let matched = text(&mut browser, "matched");
    assert!(matched.starts_with("Matched: ") && !matched.contains(" 0%"), "{matched:?}");
    let marked = format!("{}.querySelector('rect').getAttribute('fill')", element(frame));
    let mark = browser.evaluate(&marked);
    browser.point("document.getElementById('search')", true);
    assert_ne!(browser.evaluate(&marked), mark, "the mark stays");
    browser.assert_quiet();
}

#[test]
fn a_flame_graph_is_explained_by_the_pointer_zoomed_and_searched() {
    require_bpf!();
    let folder = tempfile::tempdir().unwrap();
    let (picture, _) = profiled("svg", folder.path());
    assert_picture_answers(&picture, "malloc (");
}

#[test]
fn a_flame_graph_shows_what_leaks_and_colours_frames_by_verdict() {
    require_bpf!();
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("judged.svg");
    let mut program =
        Process::spawn(Command::new(compile::verdicts()).stdin(Stdio::piped()).stdout(Stdio::piped()));
    assert_eq!(Lines::of("the leaking program", program.stdout.take().unwrap()).next(SOON), "ready");
    let options = ["1", "12", "--settle", "1", "--format", "svg", "--out", picture.to_str().unwrap()];
    let jjleak = Jjleak::attached([&["-p", &program.id().to_string()][..], &options[..]].concat());
    writeln!(program.stdin.as_mut().unwrap(), "pace 200 100").unwrap();
    jjleak.end().assert_done();

    let mut browser = Browser::open(&picture);
    let rect = |browser: &mut Browser, title: &str, property: &str| {
        let frame = format!(
            "[...document.querySelectorAll('#frames g')].find(it => it.querySelector('title').textContent.startsWith('{title}'))"
        );
        browser.evaluate(&format!("getComputedStyle({frame}.querySelector('rect')).{property}"))
    };
    let shown = |browser: &mut Browser, id: &str| {
        browser.evaluate(&format!("getComputedStyle(document.getElementById('{id}')).display"))
    };
    assert_eq!(rect(&mut browser, "forget_message (", "stroke"), json!("rgb(140, 15, 15)"));
    assert_ne!(rect(&mut browser, "churn (", "stroke"), json!("rgb(140, 15, 15)"));
    let of_kind = rect(&mut browser, "forget_message (", "fill");
    assert_eq!(shown(&mut browser, "marks"), json!("none"));

    browser.point("document.getElementById('switch')", true);
    assert_eq!(rect(&mut browser, "forget_message (", "fill"), json!("rgb(242, 119, 107)"));
    assert_ne!(rect(&mut browser, "churn (", "fill"), json!("rgb(242, 119, 107)"));
    assert_eq!(shown(&mut browser, "kinds"), json!("none"));

    browser.point("document.getElementById('switch')", true);
    assert_eq!(rect(&mut browser, "forget_message (", "fill"), of_kind);
    browser.assert_quiet();
}

#[test]
fn a_difference_is_explained_by_the_pointer_zoomed_and_searched() {
    require_bpf!();
    let folder = tempfile::tempdir().unwrap();
    let (before, _) = profiled("pprof", folder.path());
    let after = folder.path().join("after.pb.gz");
    let mut ledger = Ledger::start();
    let jjleak: Jjleak = ledger.attach(&["--format", "pprof", "--out", after.to_str().unwrap()]);
    ledger.run("storm");
    ledger.run("calloc");
    jjleak.interrupt().assert_done();
    let files = ["svg", "html"].map(|format| folder.path().join(format!("difference.{format}")));
    for (file, format) in files.iter().zip(["svg", "html"]) {
        let arguments = ["diff", before.to_str().unwrap(), after.to_str().unwrap(), "--format", format];
        Ended::of([&arguments[..], &["--out", file.to_str().unwrap()]].concat()).assert_done();
    }

    let [picture, page] = files;
    assert_picture_answers(&picture, "calloc (");

    // The page has the same, and a table.
    let mut browser = Browser::open(&page);
    let conclusion = browser.evaluate("document.querySelector('#conclusion h2').textContent");
    assert!(conclusion.as_str().unwrap().starts_with("Change of live memory: +"), "{conclusion}");
    let added = "[...document.querySelectorAll('#flame div')].find(it => it.style.background === 'rgb(208, 42, 168)')";
    browser.point(added, false);
    let tip = browser.evaluate("document.getElementById('tip').innerText");
    assert!(
        tip.as_str().unwrap().contains("\nnew: +") && tip.as_str().unwrap().contains("\nbefore: 0 bytes"),
        "{tip}"
    );
    let rows =
        browser.evaluate("[...document.querySelectorAll('#sites td small')].map(it => it.textContent)");
    assert!(rows.as_array().unwrap().contains(&json!("new")), "{rows}");
    browser.assert_quiet();
}

/// A profile of one stack, as another tool may write it.
mod hostile {
    use prost::Message;

    #[derive(Message)]
    struct Profile {
        #[prost(message, repeated, tag = "1")]
        sample_type: Vec<ValueType>,
        #[prost(message, repeated, tag = "2")]
        sample: Vec<Sample>,
        #[prost(message, repeated, tag = "4")]
        location: Vec<Location>,
        #[prost(message, repeated, tag = "5")]
        function: Vec<Function>,
        #[prost(string, repeated, tag = "6")]
        string_table: Vec<String>,
    }

    #[derive(Message)]
    struct ValueType {
        #[prost(int64, tag = "1")]
        name: i64,
        #[prost(int64, tag = "2")]
        unit: i64,
    }

    #[derive(Message)]
    struct Sample {
        #[prost(uint64, repeated, tag = "1")]
        location: Vec<u64>,
        #[prost(int64, repeated, tag = "2")]
        value: Vec<i64>,
    }

    #[derive(Message)]
    struct Location {
        #[prost(uint64, tag = "1")]
        id: u64,
        #[prost(message, repeated, tag = "4")]
        line: Vec<Line>,
    }

    #[derive(Message)]
    struct Line {
        #[prost(uint64, tag = "1")]
        function: u64,
    }

    #[derive(Message)]
    struct Function {
        #[prost(uint64, tag = "1")]
        id: u64,
        #[prost(int64, tag = "2")]
        name: i64,
        #[prost(int64, tag = "4")]
        file: i64,
    }

    /// A stack whose only function and file have this name.
    pub(super) fn profile(name: &str) -> Vec<u8> {
        let profile = Profile {
            sample_type: vec![ValueType { name: 1, unit: 2 }],
            sample: vec![Sample { location: vec![1], value: vec![4096] }],
            location: vec![Location { id: 1, line: vec![Line { function: 1 }] }],
            function: vec![Function { id: 1, name: 3, file: 3 }],
            string_table: ["", "inuse_space", "bytes", name].map(str::to_owned).into(),
        };
        profile.encode_to_vec()
    }
}
