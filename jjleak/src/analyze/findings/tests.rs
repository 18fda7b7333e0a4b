//! Findings on recorded stacks.

use super::*;
use crate::profile::{FrameKind, Memory, MemoryKind, SharedFrame};
use crate::render::sample;

fn java(symbol: &str, line: u32) -> Frame {
    Frame { symbol: symbol.to_owned(), line, kind: FrameKind::Java, ..Frame::default() }
}

fn native(symbol: &str, module: &str) -> Frame {
    let (symbol, module) = (symbol.to_owned(), module.to_owned());
    Frame { symbol, module, kind: FrameKind::Native, ..Frame::default() }
}

/// A verdict on blocks of `size` bytes, of which `objects` live and `rate` bytes a second come.
fn verdict(kind: VerdictKind, frames: Vec<Frame>, (size, objects): (u64, u64), rate: f64) -> Verdict {
    let mut verdict = sample::judged().verdicts.remove(0);
    let frames: Vec<SharedFrame> = frames.into_iter().map(Into::into).collect();
    verdict.kind = kind;
    verdict.caller = 1.min(frames.len().saturating_sub(1));
    verdict.frames = frames.into();
    verdict.live = Totals { bytes: size * objects, objects };
    verdict.rate = Some(Rate { per_second: rate, low: 0.9 * rate, high: 1.1 * rate });
    verdict
}

fn profile(verdicts: Vec<Verdict>) -> Profile {
    Profile { verdicts, memory: None, ..sample::judged() }
}

fn deflater(line: u32) -> Vec<Frame> {
    vec![
        native("malloc", "libc.so.6"),
        Frame { address: line.into(), ..native("deflateInit2_", "libz.so.1") },
        native("Java_java_util_zip_Deflater_init", "libzip.so"),
        java("java.util.zip.Deflater.<init>", 203),
        java("Defl.compressResponse", 3),
        java("Defl.main", 9),
    ]
}

#[test]
fn five_allocations_of_an_unclosed_deflater_are_one_finding() {
    let each = |line| verdict(VerdictKind::Leaking, deflater(line), (1000, 6), 100.);
    let profile = profile((1..=5).map(each).collect());
    let findings = findings(&profile, &Rules::default());
    let [finding] = &findings[..] else { panic!("{findings:#?}") };
    assert_eq!(finding.application().unwrap().symbol, "Defl.compressResponse");
    assert_eq!(finding.called().unwrap().symbol, "java.util.zip.Deflater.<init>");
    assert_eq!((finding.live.objects, finding.stacks(), finding.rate.unwrap().per_second), (30, 5, 500.));
}

#[test]
fn threads_that_never_end_are_one_finding_with_their_number() {
    let start = |leaf: Vec<Frame>| {
        let starts = [java("java.lang.Thread.start0", 0), java("Pool.spawn", 12), java("Pool.main", 3)];
        leaf.into_iter().chain(starts).collect::<Vec<_>>()
    };
    let tls = vec![native("calloc", "libc.so.6"), native("_dl_allocate_tls", "ld-linux-x86-64.so.2")];
    let object = vec![native("malloc", "libc.so.6"), native("JavaThread::JavaThread()", "libjvm.so")];
    let inside = vec![
        native("malloc", "libc.so.6"),
        Frame { kind: FrameKind::Jvm, ..native("JavaThread::run()", "libjvm.so") },
        native("start_thread", "libc.so.6"),
    ];
    let leaks =
        |frames, size: u32| verdict(VerdictKind::Leaking, frames, (size.into(), 3809), 10. * f64::from(size));
    let profile = profile(vec![leaks(start(object), 1500), leaks(inside, 64), leaks(start(tls), 272)]);
    let findings = findings(&profile, &Rules::default());
    let [finding] = &findings[..] else { panic!("{findings:#?}") };
    assert!(finding.is_threads);
    assert_eq!(finding.application().unwrap().symbol, "Pool.spawn");
    assert_eq!(finding.threads(), Some((3809, 10.)));
}

#[test]
fn a_site_that_leaks_takes_along_what_grows_at_the_same_place() {
    let leaks = verdict(VerdictKind::Leaking, deflater(1), (1000, 6), 100.);
    let grows = verdict(VerdictKind::Growing, deflater(2), (1000, 6), 50.);
    let profile = profile(vec![grows, leaks]);
    let findings = findings(&profile, &Rules::default());
    assert_eq!((findings.len(), findings[0].kind), (1, VerdictKind::Leaking));
}

#[test]
fn what_no_year_would_fill_is_small_and_so_is_a_hundredth_of_the_growth() {
    let other = |name, rate| {
        let frames = vec![native("malloc", "libc.so.6"), native(name, "app")];
        verdict(VerdictKind::Leaking, frames, (100, 6), rate)
    };
    // A JVM warming up: 21 KiB a minute at five places.
    let mut warming = profile(["a", "b", "c", "d", "e"].map(|name| other(name, 72.)).to_vec());
    assert!(findings(&warming, &Rules::default()).iter().all(|finding| !finding.is_small), "room unknown");
    warming.memory = Some(Memory { kind: MemoryKind::Ram, limit: 16 << 30, available: 8 << 30 });
    assert!(findings(&warming, &Rules::default()).iter().all(|finding| finding.is_small));
    // The same in a small control group.
    warming.memory = Some(Memory { kind: MemoryKind::Cgroup, limit: 1 << 30, available: 400 << 20 });
    assert!(findings(&warming, &Rules::default()).iter().all(|finding| !finding.is_small));
    let beside = profile(vec![other("a", 1e6), other("b", 1e3)]);
    let small: Vec<_> = findings(&beside, &Rules::default()).iter().map(|finding| finding.is_small).collect();
    assert_eq!(small, [false, true]);
}
