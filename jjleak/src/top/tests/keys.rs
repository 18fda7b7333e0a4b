//! Effects of keys.

use super::*;

#[test]
fn q_and_control_c_leave_from_anywhere() {
    for keys in ["", "t", "?"] {
        let mut top = view(Colors::Sixteen);
        type_in(&mut top, keys);
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(top.press(control_c), Some(Request::Leave));
    }
    let mut top = view(Colors::Sixteen);
    type_in(&mut top, "t");
    assert_eq!(press(&mut top, KeyCode::Char('q')), Some(Request::Leave));
}

#[test]
fn the_worst_comes_first_and_keys_change_the_order() {
    let mut top = view(Colors::Sixteen);
    assert_eq!(listed(&mut top), ["cache_insert", "com.example", "std::map", "load_config", "漢字"]);
    type_in(&mut top, "s");
    assert_eq!(listed(&mut top), ["cache_insert", "std::map", "load_config", "com.example", "漢字"]);
    type_in(&mut top, "ssss");
    assert_eq!(listed(&mut top)[0], "漢字", "the oldest");
    type_in(&mut top, "r");
    assert_eq!(listed(&mut top)[0], "cache_insert", "the youngest");
    type_in(&mut top, "rS");
    assert_eq!(listed(&mut top)[0], "cache_insert", "what grows fastest");
}

#[test]
fn letters_typed_in_the_tree_find_a_function_and_run_no_command() {
    let mut top = view(Colors::Sixteen);
    type_in(&mut top, "t/");
    for letter in "cache_insert".chars() {
        assert_eq!(press(&mut top, KeyCode::Char(letter)), None, "{letter} is text");
    }
    let shown = text(&mut top, USUAL);
    assert!(shown.contains("/cache_insert ") && shown.contains("Enter ends"), "{shown}");
    assert!(shown.lines().nth(3).is_some_and(|line| line.contains("cache_insert")), "{shown}");
    press(&mut top, KeyCode::Enter);
    assert_eq!(press(&mut top, KeyCode::Char('e')), Some(Request::Export), "keys are keys again");
    type_in(&mut top, "tj");
    press(&mut top, KeyCode::Enter);
    type_in(&mut top, "/map");
    assert_eq!(listed(&mut top), ["std::map"], "a call site has nothing to filter, its list has");
}

#[test]
fn the_selection_stays_when_rows_move() {
    let mut top = view(Colors::Sixteen);
    type_in(&mut top, "jj");
    assert!(selected(&mut top).contains("std::map"));
    type_in(&mut top, "s");
    assert!(selected(&mut top).contains("std::map"));
    let mut later = leaking();
    later.verdicts[2].live.bytes *= 10;
    top.update(vec![later], Cost::default());
    assert!(selected(&mut top).contains("std::map"));
    type_in(&mut top, "g");
    assert!(selected(&mut top).contains("std::map"), "now it is the first");
}

#[test]
fn the_first_row_is_selected_by_default() {
    let mut top = view(Colors::Sixteen);
    assert!(selected(&mut top).contains("cache_insert"));
    let mut later = leaking();
    later.verdicts[2].kind = VerdictKind::Leaking;
    later.verdicts[2].rate = Some(Rate { per_second: 1e6, low: 9e5, high: 1.1e6 });
    top.update(vec![later], Cost::default());
    assert!(selected(&mut top).contains("std::map"));
}

#[test]
fn a_filter_applies_while_it_is_typed_and_escape_clears_it() {
    let mut top = view(Colors::Sixteen);
    type_in(&mut top, "/PAGE");
    assert_eq!(listed(&mut top), ["cache_insert"], "by a caller's name");
    assert!(text(&mut top, USUAL).contains("/PAGE "));
    press(&mut top, KeyCode::Enter);
    assert!(text(&mut top, USUAL).contains("/PAGE shows 1 row"));
    press(&mut top, KeyCode::Esc);
    assert_eq!(listed(&mut top).len(), 5);
    type_in(&mut top, "/q?");
    assert!(text(&mut top, USUAL).contains("/q?"), "keys are text while a filter is typed");
    press(&mut top, KeyCode::Esc);
    type_in(&mut top, "/none of that name");
    assert!(text(&mut top, USUAL).contains("Nothing matches none of that name"));
}

#[test]
fn a_frozen_view_stays_and_resumes_with_the_latest_snapshot() {
    let mut top = view(Colors::Sixteen);
    type_in(&mut top, "f");
    let mut later = leaking();
    later.verdicts[0].live.bytes = 9_999_999;
    later.taken_at += jiff::SignedDuration::from_secs(30);
    top.update(vec![later], Cost::default());
    let frozen = text(&mut top, USUAL);
    assert!(frozen.contains("FROZEN at 10:04:12") && frozen.contains("5,296,496 bytes"), "{frozen}");
    press(&mut top, KeyCode::Char(' '));
    let now = text(&mut top, USUAL);
    assert!(now.contains("10:04:42") && now.contains("9,999,999 bytes") && !now.contains("FROZEN"), "{now}");
}

#[test]
fn enter_opens_the_call_site_and_its_tree_and_escape_goes_back() {
    let mut top = view(Colors::Sixteen);
    press(&mut top, KeyCode::Enter);
    let site = text(&mut top, USUAL);
    assert!(
        site.contains("leaking  95 % sure") && site.contains("▸ cache_insert [server] cache.c:108"),
        "{site}"
    );
    press(&mut top, KeyCode::Enter);
    assert!(text(&mut top, USUAL).contains("cache.c:108 › tree"));
    press(&mut top, KeyCode::Esc);
    press(&mut top, KeyCode::Esc);
    assert_eq!(listed(&mut top).len(), 5);
    press(&mut top, KeyCode::Esc);
    assert_eq!(listed(&mut top).len(), 5, "there is no way back from the first list");
}

#[test]
fn several_processes_are_listed_and_lead_to_their_call_sites() {
    let mut top = view_of_two();
    assert!(selected(&mut top).contains("server (pid 4242)"));
    press(&mut top, KeyCode::Enter);
    assert!(text(&mut top, USUAL).starts_with(" jjleak top › server (pid 4242)"));
    assert_eq!(listed(&mut top).len(), 5);
    press(&mut top, KeyCode::Esc);
    type_in(&mut top, "/worker");
    press(&mut top, KeyCode::Enter);
    assert!(selected(&mut top).contains("worker (pid 4300)"));
    press(&mut top, KeyCode::Esc);
    type_in(&mut top, "a");
    assert!(text(&mut top, USUAL).contains("PROCESS"));
}

#[test]
fn b_switches_between_bytes_and_objects() {
    let mut top = view(Colors::Sixteen);
    type_in(&mut top, "b");
    let objects = text(&mut top, USUAL);
    assert!(objects.contains("ΔOBJS") && objects.contains("+643"), "{objects}");
    let (_, value) = top.shown();
    assert_eq!(value, Value::Objects);
    type_in(&mut top, "b");
    assert!(text(&mut top, USUAL).contains("+412K"));
}

#[test]
fn an_export_contains_only_what_is_shown() {
    let mut top = view(Colors::Sixteen);
    assert_eq!(press(&mut top, KeyCode::Char('e')), Some(Request::Export));
    assert_eq!(top.shown().0.stacks.len(), 5);
    type_in(&mut top, "/cache-like");
    assert_eq!(top.shown().0.live(), Totals { bytes: 2_195_328, objects: 512 });
    press(&mut top, KeyCode::Esc);
    press(&mut top, KeyCode::Enter);
    assert_eq!(top.shown().0.live(), Totals { bytes: 5_296_496, objects: 8_075 });
    assert_eq!(view_of_two().shown().0.stacks.len(), 6, "of all processes");
}

#[test]
fn keys_move_through_the_tree_and_zoom() {
    let mut top = view(Colors::Sixteen);
    type_in(&mut top, "tjjj");
    assert!(text(&mut top, USUAL).contains("load_page  68.7 %: 5,296,496 bytes (5.1 MiB) in 8,075 objects"));
    press(&mut top, KeyCode::Enter);
    let zoomed = text(&mut top, USUAL);
    assert!(zoomed.contains("load_page  100.0 %"), "{zoomed}");
    assert_eq!(top.shown().0.stacks.len(), 1, "an export has what is zoomed in on");
    press(&mut top, KeyCode::Esc);
    press(&mut top, KeyCode::Right);
    assert!(text(&mut top, USUAL).contains("emplace_hint  28.5 %"));
    press(&mut top, KeyCode::Esc);
    assert_eq!(listed(&mut top).len(), 5);
}

#[test]
fn a_tree_taller_than_the_screen_scrolls_with_the_selection() {
    let mut top = view(Colors::Sixteen);
    let size = (40, 10);
    type_in(&mut top, "t");
    for _ in 0..5 {
        draw(&mut top, size);
        top.press(KeyEvent::new(KeyCode::Down, KeyModifiers::NONE));
    }
    let text = text(&mut top, size);
    assert!(text.contains("malloc") && text.contains("▏malloc"), "{text}");
}

#[test]
fn a_call_site_that_is_gone_says_so() {
    let mut top = view(Colors::Sixteen);
    press(&mut top, KeyCode::Enter);
    top.update(vec![sample::empty_profile()], Cost::default());
    assert!(text(&mut top, USUAL).contains("This call site is gone."));
    press(&mut top, KeyCode::Esc);
    assert!(text(&mut top, USUAL).contains("No allocations yet."));
}

#[test]
fn a_notice_shows_until_the_next_key() {
    let mut top = view(Colors::Sixteen);
    top.notify("wrote jjleak-4242.svg");
    assert!(text(&mut top, USUAL).contains("wrote jjleak-4242.svg"));
    type_in(&mut top, "j");
    assert!(!text(&mut top, USUAL).contains("wrote"));
}

#[test]
fn the_number_of_ended_processes_is_bounded() {
    let mut top = view_of_two();
    for pid in 0..100 {
        let mut profile = leaking();
        profile.process.pid = 10_000 + pid;
        top.add_ended(vec![profile]);
    }
    top.update(Vec::new(), Cost::default());
    let text = text(&mut top, (120, 60));
    assert!(text.contains("32 processes") && text.contains("68 processes ended"), "{text}");
}

#[test]
fn processes_that_have_ended_are_shown_for_a_while() {
    let mut top = view_of_two();
    let mut ended = Profile { ended: Some("exit status unknown".to_owned()), ..leaking() };
    ended.process.pid = 10_000;
    let at = ended.taken_at;
    top.add_ended(vec![ended]);
    top.forget_ended_before(at);
    top.update(vec![leaking()], Cost::default());
    let text = |top: &mut Top| text(top, (120, 40));
    assert!(text(&mut top).contains("server (pid 10000) ended"), "{}", text(&mut top));
    top.forget_ended_before(at + jiff::SignedDuration::from_secs(1));
    top.update(vec![leaking()], Cost::default());
    let gone = text(&mut top);
    assert!(!gone.contains("10000") && gone.contains("1 process ended"), "{gone}");
}

/// The leaking server with threads: the first stack is of a poller, all others of a worker.
fn threaded() -> Profile {
    let mut profile = leaking();
    profile.coverage.threads = true;
    for (index, stack) in profile.stacks.iter_mut().enumerate() {
        let name = if index == 0 { "poller" } else { "worker" }.to_owned();
        let root = Frame::of_thread(&Thread { number: 4243, name, nth: 1 }).into();
        stack.frames = stack.frames.iter().cloned().chain([root]).collect();
    }
    profile
}

#[test]
fn call_sites_name_their_threads_and_a_filter_finds_them() {
    let mut top = Top::new(about(Colors::Sixteen));
    top.update(vec![threaded()], Cost::default());
    type_in(&mut top, "/poller");
    assert_eq!(listed(&mut top), ["cache_insert"]);
    press(&mut top, KeyCode::Enter);
    press(&mut top, KeyCode::Enter);
    let site = text(&mut top, (120, 60));
    assert!(site.contains("allocated by poller (tid 4243)"), "{site}");
    assert!(site.contains("  poller (tid 4243)\n"), "its stack is below its thread: {site}");
}

#[test]
fn m_shows_the_memory_of_the_process_and_goes_back() {
    let mut top = view(Colors::Sixteen);
    assert_eq!(top.memory_of(), None);
    type_in(&mut top, "m");
    let pid = top.memory_of().unwrap();
    assert!(text(&mut top, USUAL).contains("Scanning the memory"));
    top.set_memory(pid + 1, vec!["of another".to_owned()]);
    assert!(!text(&mut top, USUAL).contains("of another"));
    let rows = (0..60).map(|row| format!("  {row} MiB  row {row}"));
    top.set_memory(pid, ["RSS 2.0 GiB".to_owned()].into_iter().chain(rows).collect());
    let shown = text(&mut top, USUAL);
    assert!(shown.contains("resident memory") && shown.contains("RSS 2.0 GiB"), "{shown}");
    assert!(shown.contains("row 5") && !shown.contains("row 59"), "{shown}");
    press(&mut top, KeyCode::PageDown);
    press(&mut top, KeyCode::PageDown);
    press(&mut top, KeyCode::PageDown);
    assert!(text(&mut top, USUAL).contains("row 59"));
    type_in(&mut top, "m");
    assert_eq!(top.memory_of(), None);
    type_in(&mut top, "m");
    press(&mut top, KeyCode::Esc);
    assert_eq!(top.memory_of(), None);
    assert!(selected(&mut top).contains("cache_insert"), "the list is as before");
}
