//! The cells, at sizes that terminals have.

use super::*;
use crate::profile::SourceKind;

#[test]
fn call_sites_in_a_usual_terminal() {
    insta::assert_snapshot!(text(&mut view(Colors::Sixteen), USUAL));
}

#[test]
fn call_sites_in_a_large_terminal() {
    insta::assert_snapshot!(text(&mut view(Colors::Sixteen), (120, 40)));
}

#[test]
fn call_sites_in_a_tiny_terminal() {
    insta::assert_snapshot!(text(&mut view(Colors::Sixteen), (40, 10)));
}

#[test]
fn a_call_site_in_a_usual_terminal() {
    let mut top = view(Colors::Sixteen);
    press(&mut top, KeyCode::Enter);
    insta::assert_snapshot!(text(&mut top, USUAL));
}

#[test]
fn a_call_site_in_a_tiny_terminal() {
    let mut top = view(Colors::Sixteen);
    press(&mut top, KeyCode::Enter);
    insta::assert_snapshot!(text(&mut top, (40, 10)));
}

#[test]
fn the_tree_in_a_usual_terminal() {
    let mut top = view(Colors::Sixteen);
    type_in(&mut top, "tjjj");
    insta::assert_snapshot!(text(&mut top, USUAL));
}

#[test]
fn the_tree_in_a_tiny_terminal() {
    let mut top = view(Colors::Sixteen);
    type_in(&mut top, "t");
    insta::assert_snapshot!(text(&mut top, (40, 10)));
}

#[test]
fn help_in_a_usual_terminal() {
    let mut top = view(Colors::Sixteen);
    type_in(&mut top, "?");
    insta::assert_snapshot!(text(&mut top, USUAL));
}

#[test]
fn several_processes_in_a_usual_terminal() {
    insta::assert_snapshot!(text(&mut view_of_two(), USUAL));
}

#[test]
fn losses_are_summed_over_processes_and_host_wide_ones_shown_once() {
    let mut top = Top::new(about(Colors::Sixteen));
    let lost = |lost: u64| Profile {
        lost: sample::counters([("missed_free", lost), ("process_table_full", 7)]),
        ..leaking()
    };
    top.update([1, 2].map(lost).into(), Cost::default());
    let shown = text(&mut top, USUAL);
    assert!(shown.contains("LOST: 3 missed_free, 7 process_table_full"), "{shown}");
}

#[test]
fn in_the_first_minute_it_is_too_early_to_say_and_what_grows_fastest_comes_first() {
    let mut profile = leaking();
    profile.coverage.settle = Duration::from_secs(90);
    for verdict in &mut profile.verdicts {
        verdict.basis = Basis::ShortHistory;
        verdict.kind = if verdict.rate.is_some() { VerdictKind::Growing } else { VerdictKind::SteadyChurn };
    }
    let mut top = Top::new(about(Colors::Sixteen));
    top.update(vec![profile], Cost::default());
    insta::assert_snapshot!(text(&mut top, USUAL));
    assert_eq!(listed(&mut top), ["cache_insert", "com.example", "std::map", "load_config", "漢字"]);
    type_in(&mut top, "/too early");
    assert_eq!(listed(&mut top).len(), 5, "by what is said of it");
    press(&mut top, KeyCode::Enter);
    press(&mut top, KeyCode::Enter);
    let site = text(&mut top, USUAL);
    assert!(site.contains("watched for 4 min 12 s; a verdict takes 6 min 0 s"), "{site}");
    assert!(!site.contains("% sure"), "{site}");
}

#[test]
fn call_sites_are_listed_also_where_nothing_is_judged() {
    let mut profile = leaking();
    profile.unjudge();
    let mut top = Top::new(About { view: "without base.pb.gz".into(), ..about(Colors::Sixteen) });
    top.update(vec![profile], Cost::default());
    let text = text(&mut top, USUAL);
    assert!(text.contains("5 not judged  without base.pb.gz"), "{text}");
    assert!(selected(&mut top).starts_with("-         5.1M"), "{text}");
    press(&mut top, KeyCode::Enter);
    assert!(self::text(&mut top, USUAL).contains("not judged"));
}

#[test]
fn losses_and_estimates_are_in_the_status_line() {
    let mut profile = leaking();
    profile.lost = sample::counters([("stale_pending", 3), ("live_table_full", 0)]);
    profile.coverage.sampling = crate::profile::Sampling::Rate(10);
    let mut top = Top::new(about(Colors::Sixteen));
    top.update(vec![profile], Cost::default());
    let text = text(&mut top, USUAL);
    let line = text.lines().nth(22).unwrap();
    assert!(line.starts_with("LOST: 3 stale_pending  ESTIMATES from 1 allocation in 10"), "{line}");
}

#[test]
fn a_longer_interval_than_requested_is_shown() {
    let mut top = view(Colors::Sixteen);
    top.set_interval(Duration::from_millis(5_400));
    let text = text(&mut top, USUAL);
    assert!(text.lines().nth(1).unwrap().contains("slowed to 5.4 s"), "{text}");
}

#[test]
fn an_empty_view_says_why_it_is_empty() {
    let mut top = Top::new(about(Colors::Sixteen));
    assert!(text(&mut top, USUAL).contains("First figures in 1.0 s."));
    top.update(vec![sample::empty_profile()], Cost::default());
    let nothing = text(&mut top, USUAL);
    assert!(nothing.contains("No allocations yet.") && nothing.contains("since 10:00:00"), "{nothing}");
    let mut freed = sample::empty_profile();
    freed.stacks =
        vec![StackProfile { allocated: Totals { bytes: 64, objects: 2 }, ..sample::empty_stack() }];
    top.update(vec![freed], Cost::default());
    assert!(text(&mut top, USUAL).contains("No live blocks: 2 allocations, all freed."));
    let mut none = Top::new(About { several: true, ..about(Colors::Sixteen) });
    none.update(Vec::new(), Cost::default());
    assert!(text(&mut none, USUAL).contains("No processes yet."));
}

#[test]
fn a_process_that_has_ended_stays_and_says_how_it_ended() {
    let mut top = view(Colors::Sixteen);
    let ended = Some("exit status: 3".to_owned());
    top.add_ended(vec![Profile { ended, ..leaking() }]);
    top.end();
    top.update(Vec::new(), Cost::default());
    let text = text(&mut top, USUAL);
    assert!(text.lines().next().unwrap().ends_with("ENDED at 10:04:12"), "{text}");
    assert!(text.contains("ended: exit status: 3") && text.contains("cache_insert"), "{text}");
}

#[test]
fn no_colour_is_used_when_none_is_wanted() {
    for keys in ["", "t", "?"] {
        let mut top = view(Colors::None);
        type_in(&mut top, keys);
        let buffer = draw(&mut top, USUAL);
        let is_plain = |color: Color| color == Color::Reset;
        assert!(buffer.content.iter().all(|cell| is_plain(cell.fg) && is_plain(cell.bg)), "{keys}");
    }
}

#[test]
fn sixteen_colours_are_enough() {
    let mut top = view(Colors::Sixteen);
    type_in(&mut top, "t");
    let many = |color: Color| matches!(color, Color::Rgb(..) | Color::Indexed(_));
    let buffer = draw(&mut top, USUAL);
    assert!(!buffer.content.iter().any(|cell| many(cell.fg) || many(cell.bg)));
    let leak = draw(&mut view(Colors::Sixteen), USUAL);
    assert!((0..USUAL.1).any(|y| leak[(0, y)].symbol() == "l" || leak[(0, y)].fg == Color::Yellow));
}

#[test]
fn no_cell_contains_control_characters() {
    for keys in ["", "G\n", "t", "/\u{1b}["] {
        let mut top = view(Colors::True);
        for key in keys.chars() {
            press(&mut top, if key == '\n' { KeyCode::Enter } else { KeyCode::Char(key) });
        }
        for size in [USUAL, (120, 40), (40, 10)] {
            let buffer = draw(&mut top, size);
            let hostile = |c: char| c.is_control() || c == '\u{202e}';
            assert!(!buffer.content.iter().any(|cell| cell.symbol().contains(hostile)), "{keys:?}");
        }
    }
}

#[test]
fn every_size_can_be_drawn() {
    for keys in ["", "\n", "t", "?", "/x", "\nt"] {
        let mut top = view(Colors::Sixteen);
        for key in keys.chars() {
            press(&mut top, if key == '\n' { KeyCode::Enter } else { KeyCode::Char(key) });
        }
        for size in (1..=60).step_by(7).flat_map(|width| (1..=30).map(move |height| (width, height))) {
            draw(&mut top, size);
        }
        draw(&mut top, (400, 100));
    }
}

/// A view of a profile of this source whose first call site has this leaf frame.
fn view_of(source: SourceKind, leaf: Frame) -> Top {
    let mut profile = leaking();
    profile.coverage.source = source;
    let frames = &mut profile.verdicts[0].frames;
    *frames = [SharedFrame::new(leaf)].into_iter().chain(frames.iter().skip(1).cloned()).collect();
    let mut top = Top::new(about(Colors::Sixteen));
    top.update(vec![profile], Cost::default());
    top
}

#[test]
fn java_objects_are_named_by_their_class_and_were_allocated() {
    let shown = text(&mut view_of(SourceKind::JavaHeap, Frame::of_class("byte[]".to_owned())), (120, 40));
    assert!(shown.contains("byte[] ← cache_insert"), "{shown}");
    assert!(shown.contains(" ALLOC ") && !shown.contains(" LIVE "), "{shown}");
}

#[test]
fn pages_are_resident() {
    let shown = text(&mut view_of(SourceKind::Growth, Frame::of_memory("malloc".to_owned())), (120, 40));
    assert!(shown.contains(" RESID ") && shown.contains(" PAGES "), "{shown}");
}
