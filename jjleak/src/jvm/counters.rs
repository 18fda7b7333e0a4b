//! Performance counters, which a JVM exports for its own monitoring tools
//! (`src/hotspot/share/runtime/perfMemory.hpp` in the JDK).

use std::collections::HashMap;

use super::Memory;
use super::structs::{Field, Structs};

/// Name of the counter with the JVM's vendor.
pub(super) const VENDOR: &str = "java.property.java.vm.vendor";
/// Maximum number of bytes read; the default is 32 KiB (`-XX:PerfDataMemorySize`).
const MAX_BYTES: u64 = 1 << 20;

/// Layout of the counters' memory.
struct Layout {
    first: Field,
    count: Field,
    length: Field,
    name: Field,
    value: Field,
    value_length: Field,
}

impl Layout {
    fn of(structs: &Structs) -> Option<Self> {
        let all = |name| structs.field(&[("PerfDataPrologue", name)]).ok();
        let entry = |name| structs.field(&[("PerfDataEntry", name)]).ok();
        Some(Self {
            first: all("entry_offset")?,
            count: all("num_entries")?,
            length: entry("entry_length")?,
            name: entry("name_offset")?,
            value: entry("data_offset")?,
            value_length: entry("vector_length")?,
        })
    }

    /// Name and value of an entry, if it is a string.
    fn parse<'a>(&self, entry: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        let behind = |start: Field| entry.get(usize::try_from(start.of(entry)?).ok()?..);
        let value = behind(self.value)?.get(..usize::try_from(self.value_length.of(entry)?).ok()?)?;
        Some((until_zero(behind(self.name)?), until_zero(value)))
    }
}

/// The string with this name. `None` if there is none, or counters are off (`-XX:-UsePerfData`).
pub(super) fn text(memory: &impl Memory, structs: &Structs, wanted: &str) -> Option<String> {
    let layout = Layout::of(structs)?;
    let pointer = |name| memory.pointer(structs.address(&[("PerfMemory", name)]).ok()?);
    let (start, top) = (pointer("_start")?, pointer("_top")?);
    let length = usize::try_from(top.checked_sub(start)?.min(MAX_BYTES)).ok()?;
    let copy = memory.bytes(start, length)?;
    let mut rest = copy.get(usize::try_from(layout.first.of(&copy)?).ok()?..)?;
    for _ in 0..layout.count.of(&copy)? {
        let length = usize::try_from(layout.length.of(rest)?).ok().filter(|length| *length > 0)?;
        let (entry, others) = rest.split_at_checked(length)?;
        match layout.parse(entry) {
            Some((name, value)) if name == wanted.as_bytes() => {
                return String::from_utf8(value.to_vec()).ok();
            }
            _ => rest = others,
        }
    }
    None
}

/// Maximum number of counters; JDK 11 to 25 have up to 200.
const MAX_COUNTERS: u64 = 4096;

/// All counters that are numbers, by name. `None` if counters are off.
pub(crate) fn numbers(memory: &impl Memory, structs: &Structs) -> Option<HashMap<String, u64>> {
    let layout = Layout::of(structs)?;
    let pointer = |name| memory.pointer(structs.address(&[("PerfMemory", name)]).ok()?);
    let (start, top) = (pointer("_start")?, pointer("_top")?);
    let length = usize::try_from(top.checked_sub(start)?.min(MAX_BYTES)).ok()?;
    let copy = memory.bytes(start, length)?;
    let mut rest = copy.get(usize::try_from(layout.first.of(&copy)?).ok()?..)?;
    let mut numbers = HashMap::new();
    for _ in 0..layout.count.of(&copy)?.min(MAX_COUNTERS) {
        let length = usize::try_from(layout.length.of(rest)?).ok().filter(|length| *length > 0)?;
        let (entry, others) = rest.split_at_checked(length)?;
        if layout.value_length.of(entry)? == 0 {
            let behind = |start: Field| entry.get(usize::try_from(start.of(entry)?).ok()?..);
            let value = Field { offset: 0, width: 8 }.of(behind(layout.value)?)?;
            numbers.insert(String::from_utf8_lossy(until_zero(behind(layout.name)?)).into_owned(), value);
        }
        rest = others;
    }
    Some(numbers)
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}
