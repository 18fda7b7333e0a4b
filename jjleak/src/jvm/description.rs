//! A JVM's release and flags (`src/hotspot/share/runtime/flags/jvmFlag.hpp` in the JDK).

use std::collections::HashMap;

use super::memory::Paged;
use super::structs::{Field, Structs};
use super::{Error, Memory, Symbols, counters};
use crate::file_content::Content;

/// Maximum number of flags; JDK 11 to 25 have up to 1,426.
const MAX_FLAGS: u64 = 4096;
/// Maximum size of a flag table entry; actual ones have up to 40 bytes.
const MAX_STRIDE: u64 = 256;
/// Mask of a flag's origin.
const ORIGIN: u64 = 15;

/// Origin of a flag's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The default value.
    Default,
    /// Set by the JVM itself, according to the machine.
    Jvm,
    /// Set on the command line, in the environment or a file, or at runtime.
    User,
}

/// A JVM's release and flags.
#[derive(Debug)]
pub struct Description<M> {
    memory: M,
    version: u64,
    release: String,
    build: String,
    vendor: String,
    /// Address and origin of each flag's value.
    flags: HashMap<String, (u64, Origin)>,
}

impl<M: Memory> Description<M> {
    /// Reads the description, as [`super::Jvm::open`] does. A JVM that describes no flags has none.
    pub fn open<'data>(memory: M, library: impl Into<Content<'data>>, bias: u64) -> Result<Self, Error> {
        Self::described(memory, Symbols::of(library)?.above(bias))
    }

    /// Reads the description without the library file: `symbol` returns the addresses of exported variables.
    pub fn described(memory: M, symbol: impl Fn(&str) -> Option<u64>) -> Result<Self, Error> {
        let paged = Paged::new(&memory);
        let structs = Structs::read(&paged, symbol)?;
        let flags = flags(&paged, &structs).unwrap_or_default();
        let text = |name| {
            let at = structs.address(&[("Abstract_VM_Version", name)]).ok()?;
            memory.text(memory.pointer(at)?)
        };
        let version = structs.version(&memory);
        let release = text("_s_vm_release").unwrap_or_default();
        Ok(Self {
            version,
            // JDK 8 reports HotSpot's own version.
            release: if (1..=8).contains(&version) {
                format!("{version} (HotSpot {release})")
            } else {
                release
            },
            build: text("_s_internal_vm_info_string").unwrap_or_default(),
            vendor: counters::text(&memory, &structs, counters::VENDOR).unwrap_or_default(),
            flags,
            memory,
        })
    }

    /// The JDK's major version; 0 if unknown.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// The full version, such as `17.0.15+6-Debian-1deb12u1`, or `8 (HotSpot 25.402-b06)`.
    #[must_use]
    pub fn release(&self) -> &str {
        &self.release
    }

    /// Name, version and build, as printed by `java -Xinternalversion`.
    #[must_use]
    pub fn build(&self) -> &str {
        &self.build
    }

    /// The vendor; empty if unknown.
    #[must_use]
    pub fn vendor(&self) -> &str {
        &self.vendor
    }

    /// Value of a boolean flag; `None` if there is no such flag.
    #[must_use]
    pub fn is_on(&self, flag: &str) -> Option<bool> {
        Some(self.memory.number(self.flags.get(flag)?.0, 1)? != 0)
    }

    /// Value of an eight-byte number flag.
    #[must_use]
    pub fn number(&self, flag: &str) -> Option<u64> {
        self.memory.number(self.flags.get(flag)?.0, 8)
    }

    /// Value of a string flag.
    #[must_use]
    pub fn text(&self, flag: &str) -> Option<String> {
        self.memory.text(self.memory.pointer(self.flags.get(flag)?.0)?)
    }

    /// Origin of a flag's value.
    #[must_use]
    pub fn origin(&self, flag: &str) -> Option<Origin> {
        self.flags.get(flag).map(|(_, origin)| *origin)
    }
}

/// Addresses and origins of all flags' values.
pub(crate) fn flags(memory: &impl Memory, structs: &Structs) -> Option<HashMap<String, (u64, Origin)>> {
    let field = |name| structs.field(&[("JVMFlag", name), ("Flag", name)]).ok();
    let (name, value, word) = (field("_name")?, field("_addr")?, field("_flags")?);
    let stride = structs.size("JVMFlag").or_else(|_| structs.size("Flag")).ok()?;
    let fixed = |name| structs.address(&[("JVMFlag", name), ("Flag", name)]).ok();
    let table = memory.pointer(fixed("flags")?)?;
    let count = memory.pointer(fixed("numFlags")?)?.min(MAX_FLAGS);
    if !(8..=MAX_STRIDE).contains(&stride) {
        return None;
    }
    let copy = memory.bytes(table, usize::try_from(stride * count).ok()?)?;
    let entries = copy.chunks_exact(usize::try_from(stride).ok()?);
    let flag = |entry: &[u8]| {
        let name = memory.text(name.of(entry).filter(|at| *at != 0)?)?;
        Some((name, (pointer(value, entry)?, origin(word.of(entry)? & ORIGIN))))
    };
    Some(entries.filter_map(flag).collect())
}

/// Reads a pointer in an entry, whatever its declared type.
fn pointer(field: Field, entry: &[u8]) -> Option<u64> {
    Field { width: 8, ..field }.of(entry)
}

/// `JVMFlagOrigin`; the numbers have not changed since JDK 8.
const fn origin(number: u64) -> Origin {
    match number {
        0 => Origin::Default,
        // Ergonomics, and internal settings.
        5 | 7 => Origin::Jvm,
        _ => Origin::User,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::jvm::tests::image::Words;

    fn text(memory: &mut Vec<u64>, text: &str) -> u64 {
        let at = memory.len() as u64 * 8;
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(bytes.len() / 8 * 8 + 8, 0);
        memory.extend(bytes.as_chunks().0.iter().map(|chunk| u64::from_le_bytes(*chunk)));
        at
    }

    fn words(memory: &mut Vec<u64>, words: &[u64]) -> u64 {
        let at = memory.len() as u64 * 8;
        memory.extend(words);
        at
    }

    /// A JVM with two flags, one of them set by the user. Table entries have six words.
    fn memory() -> (Vec<u64>, HashMap<String, u64>) {
        let mut memory = vec![0; 8];
        let on = words(&mut memory, &[1]);
        let bytes = words(&mut memory, &[1 << 30]);
        let (first, second) = (text(&mut memory, "UseG1GC"), text(&mut memory, "MaxDirectMemorySize"));
        // As in JDK 17: value, name, origin.
        let table = words(&mut memory, &[on, first, 5, bytes, second, 1]);
        let table = words(&mut memory, &[table]);
        let count = words(&mut memory, &[2]);
        let release = text(&mut memory, "17.0.1+2");
        let release = words(&mut memory, &[release]);
        let version = words(&mut memory, &[17]);
        let [flag, vm] = ["JVMFlag", "Abstract_VM_Version"].map(|name| text(&mut memory, name));
        let mut entries = Vec::new();
        for (structure, name, is_static, place) in [
            (flag, "_addr", 0, 0),
            (flag, "_name", 0, 8),
            (flag, "_flags", 0, 16),
            (flag, "flags", 1, table),
            (flag, "numFlags", 1, count),
            (vm, "_s_vm_release", 1, release),
            (vm, "_vm_major_version", 1, version),
        ] {
            entries.extend([structure, text(&mut memory, name), structure, is_static, place, place]);
        }
        entries.extend([0; 6]);
        let structs = words(&mut memory, &entries);
        let types = words(&mut memory, &[flag, 24, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let mut symbols = HashMap::new();
        for (name, value) in [
            ("Types", types),
            ("TypeEntryArrayStride", 48),
            ("TypeEntryTypeNameOffset", 0),
            ("TypeEntrySizeOffset", 8),
            ("Structs", structs),
            ("StructEntryArrayStride", 48),
            ("StructEntryTypeNameOffset", 0),
            ("StructEntryFieldNameOffset", 8),
            ("StructEntryTypeStringOffset", 16),
            ("StructEntryIsStaticOffset", 24),
            ("StructEntryOffsetOffset", 32),
            ("StructEntryAddressOffset", 40),
        ] {
            symbols.insert(format!("gHotSpotVM{name}"), words(&mut memory, &[value]));
        }
        (memory, symbols)
    }

    fn describe(memory: Vec<u64>, symbols: &HashMap<String, u64>) -> Result<Description<Words>, Error> {
        Description::described(Words(memory), |name| symbols.get(name).copied())
    }

    #[test]
    fn flags_are_read_with_who_has_set_them() {
        let (memory, symbols) = memory();
        let known = describe(memory, &symbols).unwrap();
        assert_eq!((known.version(), known.release(), known.build()), (17, "17.0.1+2", ""));
        assert_eq!((known.is_on("UseG1GC"), known.origin("UseG1GC")), (Some(true), Some(Origin::Jvm)));
        assert_eq!(known.number("MaxDirectMemorySize"), Some(1 << 30));
        assert_eq!(known.origin("MaxDirectMemorySize"), Some(Origin::User));
        assert_eq!((known.is_on("UseZGC"), known.text("UseZGC")), (None, None));
    }

    proptest! {
        #[test]
        fn damaged_memory_does_no_harm(
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>(), any::<prop::sample::Index>()), 1..6),
        ) {
            let (mut memory, symbols) = memory();
            for (place, word, other) in damage {
                let (place, other) = (place.index(memory.len()), other.index(memory.len()));
                // An arbitrary value, or another address.
                memory[place] = if word % 2 == 0 { word } else { other as u64 * 8 };
            }
            if let Ok(known) = describe(memory, &symbols) {
                for flag in ["UseG1GC", "MaxDirectMemorySize"] {
                    let _ = (known.is_on(flag), known.number(flag), known.text(flag), known.origin(flag));
                }
            }
        }
    }
}
