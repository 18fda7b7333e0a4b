//! The live view in a real terminal, on a real process: its output, its keys, and the terminal afterwards.

use std::fs::{self, DirEntry};

use jjleak::render::json::Document;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use crate::support::bounded::{self, SOON};
use crate::support::jjleak::Ended;
use crate::support::ledger::Ledger;
use crate::support::privilege::{require_bpf, require_program};
use crate::support::probes;
use crate::support::terminal::Terminal;

/// A program that has leaked, and a view of it.
fn leaked(options: &str, environment: &[(&str, &str)]) -> (Ledger, Terminal) {
    let mut ledger = Ledger::start();
    let terminal = Terminal::run(&format!("top -p {} 0.3 {options}", ledger.pid()), environment);
    terminal.until("No allocations yet.");
    ledger.open_accounts();
    ledger.run("malloc");
    (ledger, terminal)
}

/// The thread of a live view that reads keys.
fn key_reader(program: u32) -> Pid {
    let threads = fs::read_dir(format!("/proc/{program}/task")).unwrap().map(|thread| thread.unwrap());
    let named = |thread: &DirEntry| fs::read_to_string(thread.path().join("comm")).unwrap() == "keys\n";
    let thread = threads.into_iter().find(named).expect("a thread named keys");
    Pid::from_raw(thread.file_name().to_str().unwrap().parse().unwrap())
}

/// Formats a number as `12,586,086`.
fn grouped(number: u64) -> String {
    let digits = number.to_string().into_bytes();
    let groups: Vec<_> = digits.rchunks(3).rev().map(|group| str::from_utf8(group).unwrap()).collect();
    groups.join(",")
}

#[test]
fn what_lives_shows_to_the_byte_and_keys_lead_to_the_stack() {
    require_program!("tmux");
    let (mut ledger, terminal) = leaked("--sort size", &[]);
    let live = ledger.accounts().live();

    let exact = format!("{} bytes", grouped(live.bytes));
    let screen = terminal.until(&exact);
    assert!(screen.contains(&format!("live in {} objects", live.objects)), "{screen}");
    // A function named like an allocator counts as a helper, and its caller is shown.
    assert!(screen.contains("obey main.c:"), "{screen}");

    terminal.press(&["Enter"]);
    let site = terminal.until("malloc [libc.so.6]");
    assert!(site.contains("▸ obey") && site.contains("sites.c:") && site.contains("complete"), "{site}");
    terminal.press(&["t"]);
    terminal.until("▏main");
    terminal.press(&["Escape"]);
    terminal.until("malloc [libc.so.6]");
    terminal.press(&["Escape"]);
    terminal.until("CALL SITE");
    terminal.press(&["q"]);
    terminal.assert_ended(0);
    assert_eq!(terminal.files(), [""; 0], "nothing is written unasked");
}

#[test]
fn a_filter_hides_what_it_does_not_match_and_a_frozen_view_stays() {
    require_program!("tmux");
    let (mut ledger, terminal) = leaked("", &[]);
    let before = ledger.accounts().live();
    let exact = |bytes: u64| format!("{} bytes", grouped(bytes));
    terminal.until(&exact(before.bytes));

    terminal.type_in("/no such function");
    terminal.until("Nothing matches no such function");
    terminal.press(&["Escape"]);
    terminal.until("CALL SITE");
    terminal.type_in("/malloc");
    terminal.press(&["Enter"]);
    terminal.until("/malloc shows 1 row");

    terminal.press(&["Space"]);
    terminal.until("FROZEN");
    ledger.run("malloc");
    let after = ledger.accounts().live();
    // The new frame still shows the frozen state.
    terminal.resize(100, 30);
    terminal
        .until_so("the larger screen", |screen| screen.lines().count() == 30 && screen.contains("FROZEN"));
    terminal.until(&exact(before.bytes));
    terminal.press(&["Space"]);
    terminal.until(&exact(after.bytes));
    terminal.resize(40, 10);
    terminal.until_so("a small view", |screen| screen.lines().count() == 10 && screen.contains("MiB live"));
    terminal.resize(80, 24);
    terminal.press(&["C-c"]);
    terminal.assert_ended(0);
}

#[test]
fn what_is_shown_is_exported_and_files_are_written_at_the_end() {
    require_program!("tmux");
    let (mut ledger, terminal) = leaked("--format json --out ./", &[]);
    let live = ledger.accounts().live();
    terminal.until(&format!("{} bytes", grouped(live.bytes)));

    terminal.press(&["e"]);
    terminal.until("wrote ./jjleak-");
    let name = terminal.files().into_iter().find(|name| name.contains(".svg")).unwrap();
    let svg = fs::read_to_string(terminal.file(&name)).unwrap();
    assert!(svg.contains(&format!("{} bytes", grouped(live.bytes))) && svg.contains("site_malloc"));

    terminal.press(&["q"]);
    terminal.assert_ended(0);
    let json = fs::read_to_string(terminal.file(&format!("jjleak-{}.json", ledger.pid()))).unwrap();
    let last: Document = serde_json::from_str(json.lines().last().unwrap()).unwrap();
    ledger.accounts().assert_reported(&last);
}

#[test]
fn a_report_that_is_asked_for_comes_when_the_view_is_left() {
    require_program!("tmux");
    let (mut ledger, terminal) = leaked("--format text --outstanding", &[]);
    let live = ledger.accounts().live();
    terminal.until(&format!("{} bytes", grouped(live.bytes)));
    let screen = terminal.screen();
    assert!(!screen.contains("outstanding allocations"), "{screen}");

    terminal.resize(100, 60);
    terminal.press(&["q"]);
    let screen = terminal.assert_ended(0);
    assert!(screen.contains("stacks with outstanding allocations:"), "{screen}");
}

/// Regression test: the thread that found a resize and a key at once did not read the key before the next one.
#[test]
fn a_key_pressed_right_after_a_resize_is_read() {
    require_program!("tmux");
    let (mut ledger, terminal) = leaked("", &[]);
    let live = ledger.accounts().live();
    terminal.until(&format!("{} bytes", grouped(live.bytes)));

    let reader = key_reader(terminal.program());
    ptrace::seize(reader, ptrace::Options::empty()).unwrap();
    ptrace::interrupt(reader).unwrap();
    waitpid(reader, Some(WaitPidFlag::__WALL)).unwrap();
    terminal.resize(100, 30);
    terminal.until_so("the larger screen", |screen| screen.lines().count() == 30);
    terminal.press(&["?"]);
    // The thread now finds the resize and the key at once.
    ptrace::detach(reader, None).unwrap();
    terminal.until("Ctrl-L");
    terminal.press(&["?"]);
    terminal.until("CALL SITE");

    terminal.press(&["q"]);
    terminal.assert_ended(0);
}

#[test]
fn the_view_of_a_program_that_ends_stays_until_it_is_left() {
    require_program!("tmux");
    let (mut ledger, terminal) = leaked("", &[]);
    let live = ledger.accounts().live();
    terminal.until(&format!("{} bytes", grouped(live.bytes)));

    ledger.exit(3);
    let screen = terminal.until("ENDED at");
    assert!(screen.contains(&format!("{} bytes", grouped(live.bytes))), "{screen}");
    assert!(screen.contains("ended: "), "{screen}");
    terminal.press(&["Enter"]);
    terminal.until("malloc [libc.so.6]");
    terminal.press(&["q"]);
    let screen = terminal.assert_ended(0);
    assert!(screen.contains("has ended: "), "{screen}");
}

#[test]
fn a_signal_ends_the_view_and_the_terminal_is_as_before() {
    require_program!("tmux");
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let ledger = Ledger::start();
        let terminal = Terminal::run(&format!("top -p {}", ledger.pid()), &[]);
        terminal.until("Accounting has started.");
        kill(Pid::from_raw(terminal.program().try_into().unwrap()), signal).unwrap();
        terminal.assert_ended(0);
    }
}

#[test]
fn a_stopped_view_gives_the_terminal_back_and_takes_it_again() {
    require_program!("tmux");
    let ledger = Ledger::start();
    let terminal = Terminal::run_as_job(&format!("top -p {}", ledger.pid()));
    terminal.until("No allocations yet.");

    terminal.press(&["C-z"]);
    terminal.until("Stopped");
    terminal.type_in("fg");
    terminal.press(&["Enter"]);
    terminal.until("No allocations yet.");
    terminal.press(&["q"]);
    terminal.until_so("the shell", |screen| screen.trim_end().ends_with('$'));
    terminal.type_in("echo status=$?; stty -a");
    terminal.press(&["Enter"]);
    terminal.assert_ended(0);
}

#[test]
fn a_command_has_no_part_of_the_terminal() {
    require_program!("tmux");
    let terminal = Terminal::run("top 0.3 -- sh -c 'echo noise; echo noise >&2; cat; exit 3'", &[]);
    let screen = terminal.until("ENDED at");
    assert!(!screen.contains("noise") && screen.contains("ended: exit status: 3"), "{screen}");
    terminal.press(&["q"]);
    let screen = terminal.assert_ended(0);
    assert!(!screen.contains("noise"), "{screen}");
}

#[test]
fn a_view_whose_terminal_is_gone_ends_says_so_and_detaches_though_hangups_are_ignored() {
    require_program!("tmux");
    let _quiet = probes::quiet();
    let folder = tempfile::tempdir().unwrap();
    let said = folder.path().join("said");
    let mut ledger = Ledger::start();
    let before = probes::Text::of(&mut ledger);
    let terminal = Terminal::run_ignoring_hangups(&format!("top -p {} 30", ledger.pid()), &said);
    terminal.until("Accounting has started.");
    let program = terminal.program();
    // An incomplete escape sequence.
    terminal.press(&["Escape", "["]);

    drop(terminal);

    let runs = || fs::metadata(format!("/proc/{program}")).is_ok();
    bounded::until(SOON, "its end", || !runs());
    let said = fs::read_to_string(said).unwrap();
    assert!(said.contains("the terminal of the live view is gone: ending"), "{said}");
    before.assert_unchanged(&mut ledger);
}

#[test]
fn processes_of_a_name_are_viewed_those_to_come_too_and_stay_for_a_while_when_they_have_ended() {
    require_program!("tmux");
    let _everywhere = probes::everywhere();
    let folder = tempfile::tempdir().unwrap();
    let name = "jjleak-viewed";
    let row = |ledger: &Ledger| format!("{name} (pid {})", ledger.pid());
    let mut before = Ledger::start_named(folder.path(), name);
    let terminal = Terminal::run(&format!("top --name ^{name}$ 0.5"), &[]);
    terminal.resize(120, 30);
    terminal.until_at_last(&format!("{} /", row(&before)));

    before.open_accounts();
    before.run("malloc");
    let live = before.accounts().live();
    terminal.until_at_last(&format!("{} bytes", grouped(live.bytes)));
    let mut after = Ledger::start_named(folder.path(), name);
    after.run("calloc");
    terminal.until_at_last(&row(&after));
    let (ended, pid) = (row(&after), after.pid());
    after.exit(3);
    let screen = terminal.until_at_last(&format!("{ended} ended"));
    assert!(!screen.contains(&format!("{} ended", row(&before))), "{screen}");

    // Its last profile can still be inspected.
    terminal.type_in(&format!("/{pid}"));
    terminal.press(&["Enter"]);
    terminal.until(" shows 1 row");
    terminal.press(&["Enter"]);
    terminal.until("obey main.c:");
    terminal.press(&["q"]);
    terminal.assert_ended(0);
}

#[test]
fn a_program_that_runs_already_is_found_by_a_filter_among_all_of_the_host() {
    require_program!("tmux");
    let _everywhere = probes::everywhere();
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::start_named(folder.path(), "jjleak-found");
    // Restricted to blocks as large as the program's own, of which the tables have room for all on the host, however busy it is.
    let terminal = Terminal::run("top --system-wide 0.5 --min-size 4294967296", &[]);
    terminal.resize(120, 30);
    terminal.until_at_last("PROCESS");

    // Filters ignore case, for quick typing.
    terminal.type_in("/JJLEAK-FOUND");
    terminal.press(&["Enter"]);
    terminal.until_at_last("/JJLEAK-FOUND shows 1 row");
    terminal.until_at_last(&format!("jjleak-found (pid {})", ledger.pid()));
    ledger.open_accounts();
    ledger.run("beyond_4_gib");
    let live = ledger.accounts().live();
    terminal.until_at_last(&format!("{} bytes", grouped(live.bytes)));
    terminal.press(&["q"]);
    terminal.assert_ended(0);
}

#[test]
fn no_colour_reaches_the_terminal_when_none_is_wanted() {
    require_program!("tmux");
    let colours = |environment: &[(&str, &str)]| {
        let (mut ledger, terminal) = leaked("", environment);
        terminal.until(&format!("{} bytes", grouped(ledger.accounts().live().bytes)));
        let screen = terminal.colored_screen();
        let codes = screen.split("\u{1b}[").skip(1).filter_map(|code| code.split_once('m'));
        let is_colour = |code: &str| {
            code.split(';').filter_map(|part| part.parse::<u32>().ok()).any(|part| (30..=38).contains(&part))
        };
        codes.filter(|(code, _)| is_colour(code)).count()
    };
    assert_eq!(colours(&[("NO_COLOR", "1")]), 0);
    assert!(colours(&[]) > 0);
}

#[test]
fn a_view_without_a_terminal_is_refused_with_what_to_do() {
    require_bpf!();
    let ledger = Ledger::start();
    let pid = ledger.pid().to_string();
    Ended::of(["top", "-p", &pid]).assert_failed(
        2,
        "the live view needs a terminal",
        "remove the redirection",
    );
}
