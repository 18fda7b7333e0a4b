//! The messages of pprof's `proto/profile.proto`, field by field. Strings are indexes into the string table;
//! ID 0 is none.
//!
//! jjleak's additional data have fields from number 1000 on, far from those that pprof's authors assign one
//! by one. Other readers skip unknown fields; labels they would show or misread.

/// `perftools.profiles.Profile`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Profile {
    #[prost(message, repeated, tag = "1")]
    pub(super) sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    pub(super) sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    pub(super) mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    pub(super) location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    pub(super) function: Vec<Function>,
    /// The first is empty.
    #[prost(string, repeated, tag = "6")]
    pub(super) string_table: Vec<String>,
    /// Time of the profile, in nanoseconds since the epoch.
    #[prost(int64, tag = "9")]
    pub(super) time_nanos: i64,
    #[prost(int64, tag = "10")]
    pub(super) duration_nanos: i64,
    #[prost(int64, repeated, tag = "13")]
    pub(super) comment: Vec<i64>,
    #[prost(int64, tag = "14")]
    pub(super) default_sample_type: i64,
    /// Live totals at earlier reports and at this one.
    #[prost(message, repeated, tag = "1000")]
    pub(super) history: Vec<MomentDetail>,
    /// Verdicts on call sites.
    #[prost(message, repeated, tag = "1001")]
    pub(super) verdict: Vec<VerdictDetail>,
    /// Memory limit of the process.
    #[prost(message, optional, tag = "1002")]
    pub(super) memory: Option<MemoryDetail>,
}

/// A verdict; times in nanoseconds.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct VerdictDetail {
    #[prost(int64, tag = "1")]
    pub(super) kind: i64,
    #[prost(double, tag = "2")]
    pub(super) confidence: f64,
    #[prost(fixed64, tag = "3")]
    pub(super) site: u64,
    #[prost(fixed64, repeated, tag = "4")]
    pub(super) stack_id: Vec<u64>,
    /// Frames of the largest stack, leaf first.
    #[prost(uint64, repeated, tag = "5")]
    pub(super) location_id: Vec<u64>,
    #[prost(uint64, tag = "6")]
    pub(super) caller: u64,
    #[prost(message, optional, tag = "7")]
    pub(super) live: Option<TotalsDetail>,
    #[prost(message, optional, tag = "8")]
    pub(super) allocated: Option<TotalsDetail>,
    #[prost(uint64, tag = "9")]
    pub(super) watched: u64,
    #[prost(uint64, tag = "10")]
    pub(super) first_seen: u64,
    #[prost(message, optional, tag = "11")]
    pub(super) rate: Option<RateDetail>,
    #[prost(message, optional, tag = "12")]
    pub(super) survival: Option<SurvivalDetail>,
    #[prost(double, tag = "13")]
    pub(super) allocation_rate: f64,
    #[prost(double, tag = "14")]
    pub(super) free_rate: f64,
    #[prost(double, optional, tag = "15")]
    pub(super) freed_when_old: Option<f64>,
    #[prost(uint64, optional, tag = "16")]
    pub(super) flat_for: Option<u64>,
    #[prost(message, repeated, tag = "17")]
    pub(super) point: Vec<PointDetail>,
    #[prost(double, optional, tag = "18")]
    pub(super) freed_from_before: Option<f64>,
    #[prost(uint64, tag = "19")]
    pub(super) hidden_stacks: u64,
    #[prost(bool, tag = "20")]
    pub(super) is_early: bool,
    #[prost(bool, tag = "21")]
    pub(super) not_resident: bool,
}

/// Bytes per second.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct RateDetail {
    #[prost(double, tag = "1")]
    pub(super) per_second: f64,
    #[prost(double, tag = "2")]
    pub(super) low: f64,
    #[prost(double, tag = "3")]
    pub(super) high: f64,
}

/// Survival of old allocations.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct SurvivalDetail {
    #[prost(uint64, tag = "1")]
    pub(super) older_than: u64,
    #[prost(message, optional, tag = "2")]
    pub(super) allocated: Option<TotalsDetail>,
    #[prost(message, optional, tag = "3")]
    pub(super) live: Option<TotalsDetail>,
}

/// Live bytes at an instant.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct PointDetail {
    #[prost(uint64, tag = "1")]
    pub(super) at: u64,
    #[prost(uint64, tag = "2")]
    pub(super) bytes: u64,
}

/// A memory limit.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct MemoryDetail {
    /// Name of what sets the limit.
    #[prost(int64, tag = "1")]
    pub(super) kind: i64,
    #[prost(uint64, tag = "2")]
    pub(super) limit: u64,
    #[prost(uint64, tag = "3")]
    pub(super) available: u64,
}

/// Live totals at an instant.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct MomentDetail {
    /// Nanoseconds since the epoch.
    #[prost(int64, tag = "1")]
    pub(super) time_nanos: i64,
    #[prost(uint64, tag = "2")]
    pub(super) bytes: u64,
    #[prost(uint64, tag = "3")]
    pub(super) objects: u64,
    /// Resident memory; absent if unknown.
    #[prost(uint64, optional, tag = "4")]
    pub(super) resident: Option<u64>,
}

/// Type and unit of a sample's values.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct ValueType {
    #[prost(int64, tag = "1")]
    pub(super) r#type: i64,
    #[prost(int64, tag = "2")]
    pub(super) unit: i64,
}

/// A stack and its values.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Sample {
    /// Leaf first.
    #[prost(uint64, repeated, tag = "1")]
    pub(super) location_id: Vec<u64>,
    /// In the order of the profile's sample types.
    #[prost(int64, repeated, tag = "2")]
    pub(super) value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    pub(super) label: Vec<Label>,
    /// Absent in other tools' profiles.
    #[prost(message, optional, tag = "1000")]
    pub(super) detail: Option<SampleDetail>,
}

/// A label of a sample: a string or a number.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct Label {
    #[prost(int64, tag = "1")]
    pub(super) key: i64,
    #[prost(int64, tag = "2")]
    pub(super) str: i64,
    #[prost(int64, tag = "3")]
    pub(super) num: i64,
}

/// A stack's data beyond pprof's values.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SampleDetail {
    #[prost(fixed64, tag = "1")]
    pub(super) stack_id: u64,
    /// Name of the stack's status.
    #[prost(int64, tag = "2")]
    pub(super) status: i64,
    #[prost(message, optional, tag = "3")]
    pub(super) ages: Option<AgesDetail>,
    /// Standard errors of live totals, if they are estimates.
    #[prost(message, optional, tag = "4")]
    pub(super) live_error: Option<TotalsDetail>,
    #[prost(sint64, tag = "5")]
    pub(super) growth: i64,
    #[prost(message, repeated, tag = "6")]
    pub(super) block: Vec<BlockDetail>,
    /// The stack was not kept; its one location is a placeholder.
    #[prost(bool, tag = "7")]
    pub(super) no_frames: bool,
    /// The thread's data beyond labels.
    #[prost(message, optional, tag = "8")]
    pub(super) thread: Option<ThreadDetail>,
}

/// Position of a thread.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct ThreadDetail {
    /// Ordinal among the threads with its ID.
    #[prost(uint32, tag = "1")]
    pub(super) nth: u32,
    /// Number of frames above it: the process's, if there are several.
    #[prost(uint32, tag = "2")]
    pub(super) below: u32,
}

/// Ages of the live blocks, in nanoseconds.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct AgesDetail {
    #[prost(uint64, tag = "1")]
    pub(super) oldest: u64,
    #[prost(uint64, tag = "2")]
    pub(super) newest: u64,
}

/// Bytes and objects.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct TotalsDetail {
    #[prost(uint64, tag = "1")]
    pub(super) bytes: u64,
    #[prost(uint64, tag = "2")]
    pub(super) objects: u64,
}

/// A live block; its age in nanoseconds.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct BlockDetail {
    #[prost(fixed64, tag = "1")]
    pub(super) address: u64,
    #[prost(uint64, tag = "2")]
    pub(super) size: u64,
    #[prost(uint64, tag = "3")]
    pub(super) age: u64,
}

/// A mapped file.
#[expect(clippy::struct_excessive_bools, reason = "the format's")]
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct Mapping {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(uint64, tag = "2")]
    pub(super) memory_start: u64,
    #[prost(uint64, tag = "3")]
    pub(super) memory_limit: u64,
    #[prost(uint64, tag = "4")]
    pub(super) file_offset: u64,
    #[prost(int64, tag = "5")]
    pub(super) filename: i64,
    #[prost(int64, tag = "6")]
    pub(super) build_id: i64,
    #[prost(bool, tag = "7")]
    pub(super) has_functions: bool,
    #[prost(bool, tag = "8")]
    pub(super) has_filenames: bool,
    #[prost(bool, tag = "9")]
    pub(super) has_line_numbers: bool,
    #[prost(bool, tag = "10")]
    pub(super) has_inline_frames: bool,
}

/// An address with the functions at it.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Location {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(uint64, tag = "2")]
    pub(super) mapping_id: u64,
    #[prost(uint64, tag = "3")]
    pub(super) address: u64,
    /// Innermost inlined function first; the last is the one that all are inlined into.
    #[prost(message, repeated, tag = "4")]
    pub(super) line: Vec<Line>,
    /// Packed kind of each line's frame, or of the address without lines: see [`super::frame::pack`].
    #[prost(uint32, repeated, tag = "1000")]
    pub(super) frame: Vec<u32>,
}

/// A position in a function.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct Line {
    #[prost(uint64, tag = "1")]
    pub(super) function_id: u64,
    #[prost(int64, tag = "2")]
    pub(super) line: i64,
}

/// A function.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct Function {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(int64, tag = "2")]
    pub(super) name: i64,
    #[prost(int64, tag = "3")]
    pub(super) system_name: i64,
    #[prost(int64, tag = "4")]
    pub(super) filename: i64,
}
