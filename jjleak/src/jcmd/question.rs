//! Diagnostic commands that jjleak sends to a JVM.

use std::time::Duration;

/// A diagnostic command of HotSpot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// Write a perf map.
    PerfMap,
    /// Count the live objects of each class, after a full collection.
    ClassHistogram,
}

impl Question {
    const ALL: [Self; 2] = [Self::PerfMap, Self::ClassHistogram];

    /// Name in the arguments of the helper process.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::PerfMap => "perf-map",
            Self::ClassHistogram => "class-histogram",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|question| question.name() == name)
    }

    /// The command.
    pub(super) const fn command(self) -> &'static str {
        match self {
            Self::PerfMap => "Compiler.perfmap",
            Self::ClassHistogram => "GC.class_histogram",
        }
    }

    /// First version of the JDK with this command.
    pub(super) const fn first_version(self) -> u64 {
        match self {
            Self::PerfMap => 17,
            Self::ClassHistogram => 8,
        }
    }

    /// Time limit of the answer. A perf map takes milliseconds; a full collection of a large heap takes seconds.
    pub(super) const fn time_limit(self) -> Duration {
        match self {
            Self::PerfMap => Duration::from_secs(5),
            Self::ClassHistogram => Duration::from_secs(60),
        }
    }

    /// Maximum length of the answer.
    pub(super) const fn longest(self) -> u64 {
        match self {
            Self::PerfMap => 64 << 10,
            // 100,000 classes.
            Self::ClassHistogram => 16 << 20,
        }
    }
}
