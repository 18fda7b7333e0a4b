//! Requests that jjleak sends to a JVM.

use std::time::Duration;

/// A diagnostic command of HotSpot, or the command to load a library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// Write a perf map.
    PerfMap,
    /// Count the live objects of each class, after a full collection.
    ClassHistogram,
    /// Load a library, and call its `Agent_OnAttach`.
    LoadAgent,
}

impl Question {
    const ALL: [Self; 3] = [Self::PerfMap, Self::ClassHistogram, Self::LoadAgent];

    /// Name in the arguments of the helper process.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::PerfMap => "perf-map",
            Self::ClassHistogram => "class-histogram",
            Self::LoadAgent => "load-agent",
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
            Self::LoadAgent => "load",
        }
    }

    /// Message to the JVM: the version of the protocol, a command, and three arguments. `words` are the path of a library and its options.
    pub(super) fn message(self, words: &[String]) -> String {
        let command = self.command();
        match (self, words) {
            (Self::LoadAgent, [library, options]) => format!("1\0{command}\0{library}\0true\0{options}\0"),
            _ => format!("1\0jcmd\0{command}\0\0\0"),
        }
    }

    /// Text that an answer to a request that succeeded has.
    pub(super) const fn wanted(self) -> &'static str {
        match self {
            Self::PerfMap | Self::ClassHistogram => "",
            Self::LoadAgent => "return code: 0",
        }
    }

    /// First version of the JDK with this command.
    pub(super) const fn first_version(self) -> u64 {
        match self {
            Self::PerfMap => 17,
            Self::ClassHistogram | Self::LoadAgent => 8,
        }
    }

    /// Time limit of the answer. A perf map takes milliseconds; a full collection of a large heap takes seconds.
    pub(super) const fn time_limit(self) -> Duration {
        match self {
            Self::PerfMap => Duration::from_secs(5),
            Self::LoadAgent => Duration::from_secs(10),
            Self::ClassHistogram => Duration::from_secs(60),
        }
    }

    /// Maximum length of the answer.
    pub(super) const fn longest(self) -> u64 {
        match self {
            Self::PerfMap | Self::LoadAgent => 64 << 10,
            // 100,000 classes.
            Self::ClassHistogram => 16 << 20,
        }
    }
}
