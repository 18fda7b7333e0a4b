//! What the index tells of a profile.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::profile::{Profile, VerdictKind};
use crate::render::{headline, site};

/// Names a profile: when it was taken, in milliseconds since 1970, and of which process. As text, it is digits and a hyphen.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Id {
    milliseconds: i64,
    pid: u32,
}

impl Id {
    /// The name of a profile.
    #[must_use]
    pub fn of(profile: &Profile) -> Self {
        Self { milliseconds: profile.taken_at.as_millisecond().max(0), pid: profile.process.pid }
    }

    /// When it was taken.
    #[must_use]
    pub fn time(&self) -> Timestamp {
        Timestamp::from_millisecond(self.milliseconds).unwrap_or(Timestamp::MAX)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:013}-{}", self.milliseconds, self.pid)
    }
}

impl FromStr for Id {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "it is no name of a profile".to_owned();
        let (milliseconds, pid) = text.split_once('-').ok_or_else(wrong)?;
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(milliseconds) || !is_number(pid) {
            return Err(wrong());
        }
        let id = Self {
            milliseconds: milliseconds.parse().map_err(|_| wrong())?,
            pid: pid.parse().map_err(|_| wrong())?,
        };
        // There is one text for each: files are named by it.
        if id.to_string() == text { Ok(id) } else { Err(wrong()) }
    }
}

impl TryFrom<String> for Id {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Id> for String {
    fn from(id: Id) -> Self {
        id.to_string()
    }
}

/// What is known of a profile without reading it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name.
    pub id: Id,
    /// When it was taken.
    pub time: Timestamp,
    /// When accounting began: the same for all profiles of a series.
    pub began: Timestamp,
    /// The process.
    pub pid: u32,
    /// Its start time, in clock ticks since boot.
    pub start_time: u64,
    /// Its name.
    pub comm: String,
    /// Why it was profiled.
    pub why: String,
    /// Bytes that lived.
    pub live_bytes: u64,
    /// Objects that lived.
    pub live_objects: u64,
    /// Whether the process had been watched for long enough to tell leaks.
    pub judged: bool,
    /// The verdict on the process, in words.
    pub verdict: String,
    /// Call sites that leak, what is worst first.
    pub leaking: Vec<String>,
    /// Whether anything was lost: the figures are not exact then.
    pub has_losses: bool,
    file_bytes: u64,
    picture_bytes: u64,
    checksum: u32,
}

/// Call sites that an entry names.
const MAX_SITES: usize = 10;

impl Entry {
    /// What there is to know of a profile.
    #[must_use]
    pub fn of(id: Id, profile: &Profile, why: &str) -> Self {
        let live = profile.live();
        let leaking = profile.verdicts.iter().filter(|verdict| verdict.kind == VerdictKind::Leaking);
        Self {
            id,
            time: profile.taken_at,
            began: profile.started_at,
            pid: profile.process.pid,
            start_time: profile.process.start_time,
            comm: profile.process.comm.clone(),
            why: why.to_owned(),
            live_bytes: live.bytes,
            live_objects: live.objects,
            judged: profile.is_judged(),
            verdict: headline(profile),
            leaking: leaking.take(MAX_SITES).map(site).collect(),
            has_losses: profile.lost.values().any(|count| *count > 0),
            file_bytes: 0,
            picture_bytes: 0,
            checksum: 0,
        }
    }

    /// Notes what its files are.
    pub(super) fn seal(&mut self, file: &[u8], picture: &[u8]) {
        (self.file_bytes, self.picture_bytes) = (file.len() as u64, picture.len() as u64);
        self.checksum = crc32fast::hash(file);
    }

    /// Whether a file of this length and checksum is the one that was written.
    pub(super) const fn is_of(&self, (length, checksum): (u64, u32)) -> bool {
        self.file_bytes == length && self.checksum == checksum
    }

    /// Bytes of its files.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.file_bytes + self.picture_bytes
    }
}
