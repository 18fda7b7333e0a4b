//! HotSpot's description of its own structures: where each field is, and how wide.

use std::collections::HashMap;

use super::{Error, Memory, STRUCTS};

/// Most entries of a table that are read; the JDKs from 11 to 25 have up to 840.
const MAX_ENTRIES: u64 = 4096;
/// Longest entry of a table; they have up to 56 bytes.
const MAX_STRIDE: usize = 256;

/// The JVM's own version in JDK 8.
const HOTSPOT_25: u64 = 25;

/// A field: its distance from the start of its structure, and its width in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) offset: u64,
    pub(super) width: usize,
}

impl Field {
    /// Its value, as an unsigned number, in the structure at `base`.
    pub(super) fn read(self, memory: &impl Memory, base: u64) -> Option<u64> {
        memory.number(base.wrapping_add(self.offset), self.width)
    }

    /// Its value in a copy of the start of its structure.
    pub(super) fn of(self, copy: &[u8]) -> Option<u64> {
        let at = usize::try_from(self.offset).ok()?;
        let mut bytes = [0; 8];
        bytes.get_mut(..self.width)?.copy_from_slice(copy.get(at..at.checked_add(self.width)?)?);
        Some(u64::from_le_bytes(bytes))
    }

    /// Its value as a signed number in a copy.
    pub(super) fn of_signed(self, copy: &[u8]) -> Option<i64> {
        Some(self.extended(self.of(copy)?))
    }

    /// First byte after it.
    pub(super) fn end(self) -> u64 {
        self.offset.saturating_add(self.width as u64)
    }

    fn extended(self, value: u64) -> i64 {
        let unused = 64 - 8 * self.width.clamp(1, 8);
        (value << unused).cast_signed() >> unused
    }
}

/// The tables.
#[derive(Debug, Default)]
pub(super) struct Structs {
    fields: HashMap<(String, String), Field>,
    /// Addresses of static fields.
    statics: HashMap<(String, String), u64>,
    sizes: HashMap<String, u64>,
}

impl Structs {
    /// Reads them; `symbol` gives the addresses of exported variables.
    pub(super) fn read(memory: &impl Memory, symbol: impl Fn(&str) -> Option<u64>) -> Result<Self, Error> {
        let value =
            |name: &str| symbol(name).and_then(|address| memory.pointer(address)).ok_or(Error::NoStructs);
        let mut structs = Self::default();
        let table = Table {
            at: value("gHotSpotVMTypes")?,
            stride: value("gHotSpotVMTypeEntryArrayStride")?,
            name: value("gHotSpotVMTypeEntryTypeNameOffset")?,
        };
        let size = value("gHotSpotVMTypeEntrySizeOffset")?;
        table.each(memory, |entry, name| {
            structs.sizes.insert(name, word(entry, size)?);
            Some(())
        })?;
        let table = Table {
            at: value(STRUCTS)?,
            stride: value("gHotSpotVMStructEntryArrayStride")?,
            name: value("gHotSpotVMStructEntryTypeNameOffset")?,
        };
        let [field, kind, is_static, offset, address] =
            ["FieldName", "TypeString", "IsStatic", "Offset", "Address"]
                .map(|what| value(&format!("gHotSpotVMStructEntry{what}Offset")));
        let (field, kind, is_static, offset, address) = (field?, kind?, is_static?, offset?, address?);
        table.each(memory, |entry, name| {
            let key = (name, memory.text(word(entry, field)?)?);
            if word(entry, is_static)? & 0xffff_ffff != 0 {
                structs.statics.insert(key, word(entry, address)?);
            } else {
                let kind = memory.text(word(entry, kind)?).unwrap_or_default();
                let width = structs.width(&kind);
                structs.fields.insert(key, Field { offset: word(entry, offset)?, width });
            }
            Some(())
        })?;
        Ok(structs)
    }

    /// A field, by the first of these names that there is: they change from version to version.
    pub(super) fn field(&self, names: &[(&str, &str)]) -> Result<Field, Error> {
        first(&self.fields, names).ok_or_else(|| unknown(names))
    }

    /// Where a static field is.
    pub(super) fn address(&self, names: &[(&str, &str)]) -> Result<u64, Error> {
        first(&self.statics, names).ok_or_else(|| unknown(names))
    }

    /// Bytes of a structure.
    pub(super) fn size(&self, name: &str) -> Result<u64, Error> {
        self.sizes.get(name).copied().ok_or_else(|| Error::Unknown(name.to_owned()))
    }

    /// The JDK's major version; 0 when it is not told.
    pub(super) fn version(&self, memory: &impl Memory) -> u64 {
        let address = self.address(&[("Abstract_VM_Version", "_vm_major_version")]);
        let major = address.ok().and_then(|address| memory.number(address, 4)).unwrap_or_default();
        // Until JDK 8, the JVM counts its own versions, of which 25 is the one in JDK 8; it has one code heap only.
        let is_old = self.address(&[("CodeCache", "_heap")]).is_ok();
        if is_old { major.saturating_sub(HOTSPOT_25 - 8) } else { major }
    }

    /// Bytes of a field of this type. What is no number of up to 8 bytes is a structure, of which the first word is meant.
    fn width(&self, kind: &str) -> usize {
        let kind = kind.trim_start_matches("volatile ").trim_start_matches("const ");
        let size = if kind.ends_with('*') { None } else { self.sizes.get(kind).copied() };
        match (kind, size) {
            ("signed char" | "bool", _) => 1,
            (_, Some(size @ (1 | 2 | 4))) => usize::try_from(size).unwrap_or(8),
            _ => 8,
        }
    }
}

fn first<T: Copy>(known: &HashMap<(String, String), T>, names: &[(&str, &str)]) -> Option<T> {
    names
        .iter()
        .find_map(|(structure, field)| known.get(&((*structure).to_owned(), (*field).to_owned())))
        .copied()
}

fn unknown(names: &[(&str, &str)]) -> Error {
    let names: Vec<_> = names.iter().map(|(structure, field)| format!("{structure}::{field}")).collect();
    Error::Unknown(names.join(" or "))
}

/// A table whose last entry has no name.
struct Table {
    at: u64,
    stride: u64,
    /// Where in an entry the pointer to its name is.
    name: u64,
}

impl Table {
    /// Shows each entry and its name. Entries that make no sense are passed over.
    fn each(
        &self,
        memory: &impl Memory,
        mut show: impl FnMut(&[u8], String) -> Option<()>,
    ) -> Result<(), Error> {
        let stride = usize::try_from(self.stride).ok().filter(|stride| (8..=MAX_STRIDE).contains(stride));
        let stride = stride.ok_or(Error::Unreadable("its tables of structures"))?;
        for index in 0..MAX_ENTRIES {
            let at = self.at.wrapping_add(index * self.stride);
            let entry = memory.bytes(at, stride).ok_or(Error::Unreadable("its tables of structures"))?;
            match word(&entry, self.name) {
                None | Some(0) => return Ok(()),
                Some(name) => {
                    let _ = memory.text(name).and_then(|name| show(&entry, name));
                }
            }
        }
        Ok(())
    }
}

fn word(entry: &[u8], at: u64) -> Option<u64> {
    Field { offset: at, width: 8 }.of(entry).or_else(|| Field { offset: at, width: 4 }.of(entry))
}
