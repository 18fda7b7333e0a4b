//! Profile comments: `key=value` data without a field of its own, for people and for jjleak.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::profile::{
    Cost, Coverage, InWindows, ProcessInfo, ProcessKind, Profile, Sampling, SourceKind, Totals,
};

/// The tool that wrote the file.
const TOOL: &str = concat!("jjleak ", env!("CARGO_PKG_VERSION"));

/// The comments of a profile.
pub(super) fn of(profile: &Profile) -> Vec<String> {
    let (process, coverage) = (&profile.process, &profile.coverage);
    let mut comments = vec![
        format!("tool={TOOL}"),
        format!("pid={}", process.pid),
        format!("start_time={}", process.start_time),
        format!("comm={}", process.comm),
        format!("exe={}", process.exe),
        format!("kind={}", process.kind.name()),
        format!("unknown_frees={}", profile.unknown_frees),
    ];
    let mut add = |key: &str, value: Option<String>| {
        comments.extend(value.map(|value| format!("{key}={value}")));
    };
    add("forked_from", process.forked_from.map(|pid| pid.to_string()));
    add("container_pid", process.container_pid.map(|pid| pid.to_string()));
    add("ended", profile.ended.clone());
    add("older_ns", (!coverage.older.is_zero()).then(|| coverage.older.as_nanos().to_string()));
    add("settle_ns", (!coverage.settle.is_zero()).then(|| coverage.settle.as_nanos().to_string()));
    add("looks", (profile.snapshots > 0).then(|| profile.snapshots.to_string()));
    add("unjudged_sites", (profile.unjudged_sites > 0).then(|| profile.unjudged_sites.to_string()));
    add("some_sizes", coverage.some_sizes.then(String::new));
    add("source", (coverage.source != SourceKind::Malloc).then(|| coverage.source.name().to_owned()));
    add("threads", coverage.threads.then(|| "true".to_owned()));
    add("combined", coverage.combined.then(|| "true".to_owned()));
    add("blocks_per_stack", (coverage.blocks_per_stack > 0).then(|| coverage.blocks_per_stack.to_string()));
    if let Some(Cost { over, calls, spent, cpu }) = profile.cost {
        let nanoseconds = |duration: Duration| duration.as_nanos().to_string();
        add("cost.over_ns", Some(nanoseconds(over)));
        add("cost.calls", Some(calls.to_string()));
        add("cost.spent_ns", spent.map(nanoseconds));
        add("cost.cpu_ns", cpu.map(nanoseconds));
    }
    if let Some(InWindows { windows, weight, follows_frees, needed_percent, live_error, allocated_error }) =
        coverage.windows
    {
        add("windows", Some(windows.to_string()));
        add("windows.weight", Some(weight.to_string()));
        add("windows.misses_frees", (!follows_frees).then(|| "true".to_owned()));
        add("windows.needed_percent", needed_percent.map(|percent| percent.to_string()));
        add("windows.error_bytes", Some(live_error.bytes.to_string()));
        add("windows.error_objects", Some(live_error.objects.to_string()));
        add("windows.allocated_error_bytes", Some(allocated_error.bytes.to_string()));
        add("windows.allocated_error_objects", Some(allocated_error.objects.to_string()));
    }
    match coverage.sampling {
        // The source says so.
        Sampling::Off | Sampling::Announced => {}
        Sampling::Rate(rate) => add("sample_rate", Some(rate.to_string())),
        Sampling::Bytes(bytes) => add("sample_bytes", Some(bytes.to_string())),
    }
    comments.extend(profile.growth.iter().enumerate().map(|(line, text)| format!("growth.{line}={text}")));
    comments.extend(profile.lost.iter().map(|(name, count)| format!("lost.{name}={count}")));
    comments.extend(profile.notes.iter().map(|(name, count)| format!("notes.{name}={count}")));
    comments
}

/// Maximum number of lines on what grows: reports have two.
const MAX_GROWTH_LINES: usize = 8;

/// Parsed comments of a file.
#[derive(Debug, Default)]
pub(super) struct Comments<'a> {
    values: BTreeMap<&'a str, &'a str>,
}

impl<'a> Comments<'a> {
    /// Parses comments of the form `key=value`; the first of each key counts.
    pub(super) fn parse(comments: impl Iterator<Item = &'a str>) -> Self {
        let mut values = BTreeMap::new();
        for (key, value) in comments.filter_map(|comment| comment.split_once('=')) {
            values.entry(key).or_insert(value);
        }
        Self { values }
    }

    /// Returns whether jjleak wrote them.
    pub(super) fn are_ours(&self) -> bool {
        self.values.get("tool").is_some_and(|tool| tool.starts_with("jjleak "))
    }

    fn text(&self, key: &str) -> String {
        self.values.get(key).copied().unwrap_or_default().to_owned()
    }

    fn number<N: std::str::FromStr>(&self, key: &str) -> Option<N> {
        self.values.get(key)?.parse().ok()
    }

    /// Bytes and objects below a key.
    fn totals(&self, key: &str) -> Totals {
        let number = |part: &str| self.number(&format!("{key}_{part}")).unwrap_or_default();
        Totals { bytes: number("bytes"), objects: number("objects") }
    }

    /// Lines on the growth of resident memory.
    pub(super) fn growth(&self) -> Vec<String> {
        let line =
            |line: usize| self.values.get(format!("growth.{line}").as_str()).map(|&text| text.to_owned());
        (0..MAX_GROWTH_LINES).map_while(line).collect()
    }

    pub(super) fn ended(&self) -> Option<String> {
        self.values.get("ended").map(|&ended| ended.to_owned())
    }

    pub(super) fn unknown_frees(&self) -> u64 {
        self.number("unknown_frees").unwrap_or_default()
    }

    /// Counters with this name prefix.
    pub(super) fn counters(&self, prefix: &str) -> BTreeMap<String, u64> {
        let named = self.values.iter().filter_map(|(key, value)| Some((key.strip_prefix(prefix)?, value)));
        named.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect()
    }

    pub(super) fn process(&self) -> ProcessInfo {
        ProcessInfo {
            pid: self.number("pid").unwrap_or_default(),
            start_time: self.number("start_time").unwrap_or_default(),
            comm: self.text("comm"),
            exe: self.text("exe"),
            kind: match self.values.get("kind") {
                Some(&"jvm") => ProcessKind::Jvm,
                _ => ProcessKind::Native,
            },
            forked_from: self.number("forked_from"),
            container_pid: self.number("container_pid"),
        }
    }

    pub(super) fn snapshots(&self) -> u32 {
        self.number("looks").unwrap_or_default()
    }

    pub(super) fn unjudged_sites(&self) -> u64 {
        self.number("unjudged_sites").unwrap_or_default()
    }

    pub(super) fn cost(&self) -> Option<Cost> {
        let nanoseconds = |key| self.number(key).map(Duration::from_nanos);
        Some(Cost {
            over: nanoseconds("cost.over_ns")?,
            calls: self.number("cost.calls")?,
            spent: nanoseconds("cost.spent_ns"),
            cpu: nanoseconds("cost.cpu_ns"),
        })
    }

    pub(super) fn coverage(&self) -> Coverage {
        let source = self.values.get("source").and_then(|name| SourceKind::named(name)).unwrap_or_default();
        let sampling = match (self.number("sample_rate"), self.number("sample_bytes")) {
            (Some(rate), _) => Sampling::Rate(rate),
            (None, Some(bytes)) => Sampling::Bytes(bytes),
            (None, None) if source == SourceKind::Sampled => Sampling::Announced,
            (None, None) => Sampling::Off,
        };
        Coverage {
            older: Duration::from_nanos(self.number("older_ns").unwrap_or_default()),
            settle: Duration::from_nanos(self.number("settle_ns").unwrap_or_default()),
            source,
            some_sizes: self.values.contains_key("some_sizes"),
            sampling,
            threads: self.values.contains_key("threads"),
            windows: self.number("windows").map(|windows| InWindows {
                windows,
                weight: self.number("windows.weight").unwrap_or(1),
                follows_frees: !self.values.contains_key("windows.misses_frees"),
                needed_percent: self.number("windows.needed_percent"),
                live_error: self.totals("windows.error"),
                allocated_error: self.totals("windows.allocated_error"),
            }),
            combined: self.values.contains_key("combined"),
            blocks_per_stack: self.number("blocks_per_stack").unwrap_or_default(),
        }
    }
}
