//! The view as a user sees it: contents of the cells, and effects of keys.

use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier};

use super::*;
use crate::profile::{
    Basis, Frame, FrameKind, Frames, Memory, MemoryKind, Moment, Point, Profile, Rate, SharedFrame,
    StackProfile, Survival, Thread, Totals, Verdict, VerdictKind,
};
use crate::render::sample;

mod keys;
mod pictures;

/// The default size of a terminal.
const USUAL: (u16, u16) = (80, 24);

fn about(colors: Colors) -> About {
    About {
        interval: Duration::from_secs(1),
        view: String::new(),
        time_zone: sample::time_zone(),
        several: false,
        colors,
        sort: Sort::Verdict,
    }
}

fn frame(symbol: &str, module: &str, file: &str, line: u32) -> Frame {
    Frame {
        address: u64::from(line) + 0x1000,
        symbol: symbol.into(),
        module: module.into(),
        file: file.into(),
        line,
        kind: FrameKind::Native,
        ..Frame::default()
    }
}

fn java(symbol: &str, line: u32) -> Frame {
    Frame { kind: FrameKind::Java, ..frame(symbol, "", "Server.java", line) }
}

/// The frames of a call site of the program, leaf first.
fn frames(callers: impl IntoIterator<Item = Frame>) -> Frames {
    let malloc = frame("malloc", "/lib/libc.so.6", "", 0);
    let serve = frame("serve", "/opt/server", "server.c", 240);
    let main = frame("main", "/opt/server", "server.c", 273);
    sample::shared([malloc].into_iter().chain(callers).chain([serve, main]))
}

/// A call site with a verdict and live blocks.
fn site(
    id: u64,
    kind: VerdictKind,
    live: (u64, u64),
    callers: impl IntoIterator<Item = Frame>,
) -> (Verdict, StackProfile) {
    let frames = frames(callers);
    let live = Totals { bytes: live.0, objects: live.1 };
    let allocated = Totals { bytes: live.bytes * 3, objects: live.objects * 3 };
    let verdict = Verdict {
        kind,
        basis: Basis::LongHistory,
        confidence: 0.95,
        site: id,
        stacks: [id].into_iter().collect(),
        frames: frames.clone(),
        caller: 1,
        live,
        allocated,
        watched: Duration::from_secs(252),
        first_seen: Duration::ZERO,
        rate: None,
        survival: None,
        allocation_rate: 70_000.,
        free_rate: 48_000.,
        freed_when_old: None,
        freed_from_before: None,
        not_resident: false,
        hidden_stacks: 0,
        flat_for: (kind == VerdictKind::CacheLike).then_some(Duration::from_secs(200)),
        series: series(kind, live.bytes).into(),
    };
    let ages = crate::profile::Ages { oldest: Duration::from_secs(id * 40), newest: Duration::ZERO };
    let details = crate::profile::BlockDetails { ages: Some(ages), ..Default::default() }.into();
    let stack = StackProfile { id, live, allocated, details, frames, ..sample::empty_stack() };
    (verdict, stack)
}

fn series(kind: VerdictKind, bytes: u64) -> Vec<Point> {
    let at = |index: u64| match kind {
        VerdictKind::Leaking | VerdictKind::Growing => bytes * index / 24,
        VerdictKind::CacheLike => bytes * index.min(6) / 6,
        VerdictKind::StartUp => bytes,
        VerdictKind::SteadyChurn => bytes * (3 + index % 3) / 5,
    };
    let seconds = |index: u64| Duration::from_millis(index * 10_500);
    (1..=24).map(|index| Point { at: seconds(index), bytes: at(index) }).collect()
}

/// A leaking server: a leak, a growing Java call site, a cache, start-up memory, and churn.
fn leaking() -> Profile {
    let mut profile = sample::empty_profile();
    "server".clone_into(&mut profile.process.comm);
    let cache_insert = frame("cache_insert", "/opt/server", "src/cache.c", 108);
    let (mut leak, leak_stack) = site(
        1,
        VerdictKind::Leaking,
        (5_296_496, 8_075),
        [cache_insert, frame("load_page", "/opt/server", "src/page.c", 183)],
    );
    leak.rate = Some(Rate { per_second: 21_500., low: 20_400., high: 22_600. });
    leak.survival = Some(Survival {
        older_than: Duration::from_secs(60),
        allocated: Totals { bytes: 4_000_000, objects: 6_100 },
        live: Totals { bytes: 4_000_000, objects: 6_100 },
    });
    let (mut growing, growing_stack) = site(
        2,
        VerdictKind::Growing,
        (96_000, 1_000),
        [java("com.example.session.SessionRegistryImplementation.openSessionFor", 41)],
    );
    growing.rate = Some(Rate { per_second: 640., low: -20., high: 1_300. });
    let (cache, cache_stack) = site(
        3,
        VerdictKind::CacheLike,
        (2_195_328, 512),
        [frame("std::map<std::string, Entry>::emplace_hint", "/opt/server", "map.h", 640)],
    );
    let (start, start_stack) =
        site(4, VerdictKind::StartUp, (102_400, 200), [frame("load_config", "/opt/server", "conf.c", 15)]);
    let (churn, churn_stack) = site(
        5,
        VerdictKind::SteadyChurn,
        (20_000, 1),
        [frame("漢字\u{1b}[2J\u{202e}evil", "/opt/plugin.so", "", 0)],
    );
    profile.snapshots = crate::profile::JUDGED_SNAPSHOTS;
    profile.verdicts = vec![leak, growing, cache, start, churn];
    profile.stacks = vec![leak_stack, growing_stack, cache_stack, start_stack, churn_stack];
    let at = |index: usize| profile.verdicts.iter().map(|verdict| verdict.series[index].bytes).sum();
    let moment = |index: usize| Moment {
        at: profile.started_at + profile.verdicts[0].series[index].at,
        live: Totals { bytes: at(index), objects: 0 },
        resident: None,
    };
    profile.history = (0..profile.verdicts[0].series.len()).map(moment).collect();
    let gib = 1 << 30;
    profile.memory = Some(Memory { kind: MemoryKind::Ram, limit: 16 * gib, available: 12 * gib });
    profile
}

/// The same a second before.
fn a_second_before(mut profile: Profile) -> Profile {
    profile.taken_at -= jiff::SignedDuration::from_secs(1);
    for (verdict, stack) in profile.verdicts.iter_mut().zip(&mut profile.stacks) {
        if verdict.kind == VerdictKind::Leaking {
            verdict.live.bytes -= 421_888;
            verdict.live.objects -= 643;
        }
        verdict.allocated.objects -= verdict.live.objects / 10;
        (stack.live, stack.allocated) = (verdict.live, verdict.allocated);
    }
    profile
}

/// A view of the leaking server, at the second instant.
fn view(colors: Colors) -> Top {
    let mut top = Top::new(about(colors));
    top.update(vec![a_second_before(leaking())], Cost::default());
    top.update(vec![leaking()], Cost { cpu: Some(0.0084) });
    top
}

/// A view of two servers.
fn view_of_two() -> Top {
    let mut other = leaking();
    "worker".clone_into(&mut other.process.comm);
    other.process.pid = 4300;
    other.verdicts.truncate(0);
    other.stacks.truncate(1);
    let mut top = Top::new(About { several: true, ..about(Colors::Sixteen) });
    top.update(vec![leaking(), other], Cost::default());
    top
}

fn draw(top: &mut Top, (width, height): (u16, u16)) -> Buffer {
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    top.draw(area, &mut buffer);
    buffer
}

/// The text of all cells.
fn text(top: &mut Top, size: (u16, u16)) -> String {
    let buffer = draw(top, size);
    let mut text = String::new();
    for y in 0..size.1 {
        let mut line = String::new();
        let mut x = 0;
        while x < size.0 {
            let symbol = buffer[(x, y)].symbol();
            line.push_str(symbol);
            x += u16::try_from(text::width(symbol)).unwrap().max(1);
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn press(top: &mut Top, code: KeyCode) -> Option<Request> {
    draw(top, USUAL);
    top.press(KeyEvent::new(code, KeyModifiers::NONE))
}

fn type_in(top: &mut Top, keys: &str) {
    for key in keys.chars() {
        press(top, KeyCode::Char(key));
    }
}

/// The line that is selected.
fn selected(top: &mut Top) -> String {
    let buffer = draw(top, USUAL);
    let is_chosen = |y: &u16| (0..USUAL.0).all(|x| buffer[(x, *y)].modifier.contains(Modifier::REVERSED));
    let y = (1..USUAL.1).find(is_chosen).unwrap();
    let line: String = (0..USUAL.0).map(|x| buffer[(x, y)].symbol()).collect();
    line.trim_end().to_owned()
}

/// The functions of the listed call sites.
fn listed(top: &mut Top) -> Vec<&'static str> {
    let text = text(top, (120, 40));
    let names = ["cache_insert", "com.example", "std::map", "load_config", "漢字"];
    let mut found: Vec<_> = names.iter().filter_map(|name| Some((text.find(name)?, *name))).collect();
    found.sort_unstable();
    found.into_iter().map(|(_, name)| name).collect()
}
