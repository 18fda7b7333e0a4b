//! The report as a user reads it.

use std::time::Duration;

use super::*;
use crate::profile::{Basis, Frame, FrameKind, Verdict};
use crate::render::sample;

fn text(profile: &Profile) -> String {
    let mut out = Vec::new();
    write(profile, &sample::options(), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// Fails if the report does not fit on a screen, wrapped at 80 columns.
fn assert_fits(text: &str) {
    let lines: Vec<_> = text.lines().map(str::to_owned).collect();
    assert!(rows(&lines) <= LINES, "{} rows:\n{text}", rows(&lines));
}

fn java(symbol: &str, line: u32) -> Frame {
    let file = "Defl.java".to_owned();
    Frame { symbol: symbol.to_owned(), file, line, kind: FrameKind::Java, ..Frame::default() }
}

/// A JVM that never ends its deflaters: five call sites, and nine frames of the launcher below `main`.
fn deflaters() -> Profile {
    let mut profile = sample::judged();
    let verdict = profile.verdicts[0].clone();
    let native = |symbol: String, module: &str| Frame {
        symbol,
        module: format!("/usr/lib/{module}"),
        kind: FrameKind::Native,
        ..Frame::default()
    };
    let site = |number: u64| {
        let mut frames = vec![
            native("malloc".to_owned(), "libc.so.6"),
            native(format!("deflateInit2_{number}"), "libz.so.1"),
            native("Java_java_util_zip_Deflater_init".to_owned(), "libzip.so"),
            java("java.util.zip.Deflater.<init>", 203),
            java("Defl.compressResponse", 3),
            java("Defl.main", 9),
        ];
        frames.extend((0..9).map(|frame| native(format!("launch_{frame}"), "libjli.so")));
        let frames = frames.into_iter().map(Into::into).collect();
        Verdict { site: number, stacks: [number].into_iter().collect(), frames, ..verdict.clone() }
    };
    profile.verdicts = (1..=5).map(site).collect();
    profile
}

#[test]
fn a_report_names_causes_rates_and_the_next_step() {
    let text = text(&sample::judged());
    assert_fits(&text);
    insta::assert_snapshot!(text);
}

#[test]
fn what_grows_in_the_process_is_the_second_line_and_moves_no_stack() {
    let mut profile = sample::judged();
    let alone = text(&profile);
    let growth = ["RSS +465.0 MiB in 1 min 10 s", "cause: Java heap (96 % of the growth): 409.0 MiB used"];
    let growth = growth.map(str::to_owned).to_vec();
    profile.growth.clone_from(&growth);
    let out = text(&profile);
    assert_fits(&out);
    let lines: Vec<_> = out.lines().collect();
    assert_eq!(lines[1..3], growth);
    assert!(lines[0].contains(": Java heap (96 % of the growth); 1 call site leaks, "), "{out}");
    let without: Vec<_> = alone.lines().skip(1).take(5).collect();
    assert_eq!(lines[3..8], without);
}

#[test]
fn where_nothing_leaks_the_next_step_is_that_of_what_grows() {
    let mut profile = sample::judged();
    let step = "to do: start it with MALLOC_ARENA_MAX=2".to_owned();
    profile.growth = vec![
        "RSS +428.8 MiB in 1 min 20 s".to_owned(),
        "cause: free memory that malloc keeps: ...".to_owned(),
        step,
    ];
    profile.verdicts.retain(|verdict| verdict.kind > VerdictKind::Growing);
    let text = text(&profile);
    assert!(text.contains(": free memory that malloc keeps; nothing leaks\n"), "{text}");
    assert!(
        text.ends_with("\nNothing leaks of what it allocates. What grows is something else; to do: start it with MALLOC_ARENA_MAX=2\n"),
        "{text}"
    );
}

#[test]
fn five_sites_of_one_cause_are_one_line_without_the_launcher() {
    let text = text(&deflaters());
    assert_fits(&text);
    assert_eq!(text.matches("leaking: ").count(), 1, "{text}");
    assert!(!text.contains("launch_"), "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn before_the_verdicts_the_three_fastest_are_listed_and_the_time_of_the_verdict() {
    let mut profile = sample::judged();
    profile.taken_at = profile.started_at + Duration::from_secs(20);
    profile.verdicts.iter_mut().for_each(|verdict| verdict.basis = Basis::ShortHistory);
    let text = text(&profile);
    assert_fits(&text);
    assert!(text.ends_with("\nVerdict in 40 s.\n"), "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn a_program_that_ended_early_is_told_what_it_did_not_free() {
    let mut profile = sample::judged();
    profile.taken_at = profile.started_at + Duration::from_secs(2);
    profile.ended = Some("exit status 0".to_owned());
    let text = text(&profile);
    assert_fits(&text);
    assert!(text.contains("\nnot freed, largest first:\n\t"), "{text}");
    assert!(text.contains("1.5 MiB in 12: new_node [leaky] list.c:12 -> malloc"), "{text}");
}

#[test]
fn frees_of_older_blocks_are_called_normal() {
    let mut profile = sample::judged();
    profile.unknown_frees = 500;
    assert!(text(&profile).contains("500 frees of older blocks (normal)"), "{}", text(&profile));
}

#[test]
fn what_is_small_is_one_line_and_no_leak() {
    let mut profile = deflaters();
    let slow = |verdict: &mut Verdict| {
        verdict.rate = verdict.rate.map(|rate| crate::profile::Rate {
            per_second: 0.001 * rate.per_second,
            low: 0.001 * rate.low,
            high: 0.001 * rate.high,
        });
    };
    profile.verdicts.iter_mut().for_each(slow);
    profile.memory = profile.memory.map(|memory| crate::profile::Memory { available: 64 << 30, ..memory });
    let text = text(&profile);
    assert!(text.contains(": nothing leaks that matters\n"), "{text}");
    assert!(text.contains("\n1 small site, +21.0 KiB/min: Defl.compressResponse\n"), "{text}");
    assert!(text.ends_with("has stopped growing.\n"), "{text}");
}
