//! Estimates a message's memory before it is decoded: a list element is a byte or two in the file, next to
//! nothing when compressed, and a hundred bytes in memory.

use prost::bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use super::error::Error;
use super::proto::{
    BlockDetail, Function, Label, Line, Location, Mapping, MomentDetail, PointDetail, Sample, ValueType,
    VerdictDetail,
};
use crate::profile::{Block, Moment, Point, StackProfile, Verdict};

/// Maximum size of all elements of all lists in memory. A million stacks of 30 frames take less than half of
/// it.
pub(super) const MAX_ELEMENT_BYTES: u64 = 2 << 30;

/// A field that is a list or contains one.
struct Field {
    tag: u32,
    /// Bytes in memory per element.
    bytes: usize,
    elements: Elements,
}

enum Elements {
    /// Numbers of variable length, packed or not.
    Varints,
    /// Numbers of eight bytes, packed or not.
    Fixed,
    /// Messages with these fields, or strings.
    Messages(&'static [Field]),
}

const fn messages<T>(tag: u32, fields: &'static [Field]) -> Field {
    Field { tag, bytes: size_of::<T>(), elements: Elements::Messages(fields) }
}

const fn varints<T>(tag: u32) -> Field {
    Field { tag, bytes: size_of::<T>(), elements: Elements::Varints }
}

const fn fixed<T>(tag: u32) -> Field {
    Field { tag, bytes: size_of::<T>(), elements: Elements::Fixed }
}

/// The lists of [`super::proto::Profile`]. Sizes include both the decoded form and what is built from it.
const PROFILE: &[Field] = &[
    messages::<(ValueType, String, String)>(1, &[]),
    messages::<(Sample, StackProfile)>(2, SAMPLE),
    messages::<(Mapping, [u64; 2])>(3, &[]),
    messages::<(Location, [u64; 2])>(4, LOCATION),
    messages::<(Function, [u64; 2])>(5, &[]),
    messages::<String>(6, &[]),
    varints::<(i64, &str)>(13),
    messages::<(MomentDetail, Moment)>(1000, &[]),
    messages::<(VerdictDetail, Verdict)>(1001, VERDICT),
];
const SAMPLE: &[Field] =
    &[varints::<u64>(1), varints::<i64>(2), messages::<Label>(3, &[]), messages::<()>(1000, SAMPLE_DETAIL)];
const SAMPLE_DETAIL: &[Field] = &[messages::<(BlockDetail, Block)>(6, &[])];
const LOCATION: &[Field] = &[messages::<Line>(4, &[]), varints::<u32>(1000)];
const VERDICT: &[Field] =
    &[fixed::<[u64; 2]>(4), varints::<u64>(5), messages::<(PointDetail, Point)>(17, &[])];

/// Fails if the elements of a profile's lists would take more than `limit` bytes.
pub(super) fn check(message: &[u8], limit: u64) -> Result<(), Error> {
    let mut left = limit;
    let fits = charge(message, PROFILE, &mut left)?;
    if fits { Ok(()) } else { Err(Error::TooLarge { limit, what: "bytes of entries" }) }
}

/// Subtracts the size of a message's elements from the rest. Returns whether it was enough.
fn charge(message: &[u8], fields: &[Field], left: &mut u64) -> Result<bool, Error> {
    let mut rest = message;
    while rest.has_remaining() {
        let (tag, wire_type) = decode_key(&mut rest).map_err(Error::NotPprof)?;
        let mut value = rest;
        skip_field(wire_type, tag, &mut rest, DecodeContext::default()).map_err(Error::NotPprof)?;
        let Some(field) = fields.iter().find(|field| field.tag == tag) else { continue };
        value = &value[..value.len() - rest.len()];
        let is_bytes = wire_type == WireType::LengthDelimited;
        if is_bytes {
            decode_varint(&mut value).map_err(Error::NotPprof)?;
        }
        let number = match field.elements {
            Elements::Varints if is_bytes => value.iter().filter(|byte| **byte < 0x80).count(),
            Elements::Fixed if is_bytes => value.len() / size_of::<u64>(),
            _ => 1,
        };
        let Some(after) = left.checked_sub((number * field.bytes) as u64) else { return Ok(false) };
        *left = after;
        if let Elements::Messages(fields) = field.elements
            && is_bytes
            && !fields.is_empty()
            && !charge(value, fields, left)?
        {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::super::proto::{self, SampleDetail};
    use super::*;

    /// Number of elements in each list.
    const MANY: usize = 1000;

    /// Messages with a thousand elements in one list, with the list's name.
    fn long() -> Vec<(&'static str, proto::Profile)> {
        let base = proto::Profile::default;
        let sample = |sample| proto::Profile { sample: vec![sample], ..base() };
        let location = |location| proto::Profile { location: vec![location], ..base() };
        let verdict = |verdict| proto::Profile { verdict: vec![verdict], ..base() };
        let detail = SampleDetail { block: vec![BlockDetail::default(); MANY], ..SampleDetail::default() };
        vec![
            ("sample types", proto::Profile { sample_type: vec![ValueType::default(); MANY], ..base() }),
            ("samples", proto::Profile { sample: vec![Sample::default(); MANY], ..base() }),
            ("mappings", proto::Profile { mapping: vec![Mapping::default(); MANY], ..base() }),
            ("locations", proto::Profile { location: vec![Location::default(); MANY], ..base() }),
            ("functions", proto::Profile { function: vec![Function::default(); MANY], ..base() }),
            ("strings", proto::Profile { string_table: vec![String::new(); MANY], ..base() }),
            ("comments", proto::Profile { comment: vec![0; MANY], ..base() }),
            ("moments", proto::Profile { history: vec![MomentDetail::default(); MANY], ..base() }),
            ("verdicts", proto::Profile { verdict: vec![VerdictDetail::default(); MANY], ..base() }),
            ("a sample's locations", sample(Sample { location_id: vec![0; MANY], ..Sample::default() })),
            ("a sample's values", sample(Sample { value: vec![0; MANY], ..Sample::default() })),
            (
                "a sample's labels",
                sample(Sample { label: vec![Label::default(); MANY], ..Sample::default() }),
            ),
            ("a sample's blocks", sample(Sample { detail: Some(detail), ..Sample::default() })),
            ("lines", location(Location { line: vec![Line::default(); MANY], ..Location::default() })),
            ("kinds of frames", location(Location { frame: vec![0; MANY], ..Location::default() })),
            (
                "a verdict's stacks",
                verdict(VerdictDetail { stack_id: vec![0; MANY], ..VerdictDetail::default() }),
            ),
            (
                "a verdict's locations",
                verdict(VerdictDetail { location_id: vec![0; MANY], ..VerdictDetail::default() }),
            ),
            (
                "points",
                verdict(VerdictDetail {
                    point: vec![PointDetail::default(); MANY],
                    ..VerdictDetail::default()
                }),
            ),
        ]
    }

    #[test]
    fn lists_too_long_for_memory_are_refused_before_they_take_any() {
        // One less than the minimum size of a thousand elements of four bytes.
        let limit = 4 * MANY as u64 - 1;
        for (list, message) in long() {
            let checked = check(&message.encode_to_vec(), limit);
            assert!(matches!(checked, Err(Error::TooLarge { what: "bytes of entries", .. })), "{list}");
            assert!(check(&message.encode_to_vec(), 1 << 20).is_ok(), "{list}");
        }
    }

    #[test]
    fn numbers_that_are_not_packed_count_as_well() {
        // A sample (field 2) with values (field 2) of one byte, not packed.
        let values = [0x10, 0].repeat(50);
        let sample = [&[0x12, 100][..], &values].concat();
        let sizes = size_of::<(Sample, StackProfile)>() + 50 * size_of::<i64>();
        assert!(check(&sample, sizes as u64).is_ok());
        assert!(check(&sample, sizes as u64 - 1).is_err());
    }
}
