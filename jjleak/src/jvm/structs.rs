//! HotSpot's description of its own structures: offset and width of each field.

use std::collections::HashMap;

use super::{Error, Memory, STRUCTS};

/// Maximum number of table entries; JDK 11 to 25 have up to 840.
const MAX_ENTRIES: u64 = 4096;
/// Maximum size of a table entry; actual ones have up to 56 bytes.
const MAX_STRIDE: usize = 256;

/// HotSpot's own version in JDK 8.
const HOTSPOT_25: u64 = 25;

/// A field: its offset in its structure, and its width in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) offset: u64,
    pub(crate) width: usize,
}

impl Field {
    /// Reads the field as an unsigned number in the structure at `base`.
    pub(crate) fn read(self, memory: &impl Memory, base: u64) -> Option<u64> {
        memory.number(base.wrapping_add(self.offset), self.width)
    }

    /// Reads the field in a copy of the start of its structure.
    pub(crate) fn of(self, copy: &[u8]) -> Option<u64> {
        let at = usize::try_from(self.offset).ok()?;
        let mut bytes = [0; 8];
        bytes.get_mut(..self.width)?.copy_from_slice(copy.get(at..at.checked_add(self.width)?)?);
        Some(u64::from_le_bytes(bytes))
    }

    /// Reads the field as a signed number in a copy.
    pub(crate) fn of_signed(self, copy: &[u8]) -> Option<i64> {
        Some(self.extended(self.of(copy)?))
    }

    /// Offset of the first byte after the field.
    pub(crate) fn end(self) -> u64 {
        self.offset.saturating_add(self.width as u64)
    }

    fn extended(self, value: u64) -> i64 {
        let unused = 64 - 8 * self.width.clamp(1, 8);
        (value << unused).cast_signed() >> unused
    }
}

/// Something of fields, by the names of the structure and of the field.
type ByName<T> = HashMap<String, HashMap<String, T>>;

/// The structure descriptions.
#[derive(Debug, Default)]
pub(crate) struct Structs {
    fields: ByName<Field>,
    /// Addresses of static fields.
    statics: ByName<u64>,
    sizes: HashMap<String, u64>,
}

impl Structs {
    /// Reads the tables; `symbol` returns the addresses of exported variables.
    pub(crate) fn read(memory: &impl Memory, symbol: impl Fn(&str) -> Option<u64>) -> Result<Self, Error> {
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
            let field = memory.text(word(entry, field)?)?;
            if word(entry, is_static)? & 0xffff_ffff != 0 {
                structs.statics.entry(name).or_default().insert(field, word(entry, address)?);
            } else {
                let kind = memory.text(word(entry, kind)?).unwrap_or_default();
                let described = Field { offset: word(entry, offset)?, width: structs.width(&kind) };
                structs.fields.entry(name).or_default().insert(field, described);
            }
            Some(())
        })?;
        Ok(structs)
    }

    /// The field under the first of these names that exists: names change between versions.
    pub(crate) fn field(&self, names: &[(&str, &str)]) -> Result<Field, Error> {
        first(&self.fields, names).ok_or_else(|| unknown(names))
    }

    /// Address of a static field.
    pub(crate) fn address(&self, names: &[(&str, &str)]) -> Result<u64, Error> {
        first(&self.statics, names).ok_or_else(|| unknown(names))
    }

    /// Size of a structure in bytes.
    pub(crate) fn size(&self, name: &str) -> Result<u64, Error> {
        self.sizes.get(name).copied().ok_or_else(|| Error::Unknown(name.to_owned()))
    }

    /// The JDK's major version; 0 if unknown.
    pub(crate) fn version(&self, memory: &impl Memory) -> u64 {
        let address = self.address(&[("Abstract_VM_Version", "_vm_major_version")]);
        let major = address.ok().and_then(|address| memory.number(address, 4)).unwrap_or_default();
        // Until JDK 8, HotSpot has versions of its own; JDK 8 has 25. It has a single code heap.
        let is_old = self.address(&[("CodeCache", "_heap")]).is_ok();
        if is_old { major.saturating_sub(HOTSPOT_25 - 8) } else { major }
    }

    /// Width of a field of this type. Types that are not numbers of up to 8 bytes are structures; their first
    /// word is used.
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

fn first<T: Copy>(known: &ByName<T>, names: &[(&str, &str)]) -> Option<T> {
    names.iter().find_map(|(structure, field)| known.get(*structure)?.get(*field)).copied()
}

fn unknown(names: &[(&str, &str)]) -> Error {
    let names: Vec<_> = names.iter().map(|(structure, field)| format!("{structure}::{field}")).collect();
    Error::Unknown(names.join(" or "))
}

/// A table that ends with an entry without a name.
struct Table {
    at: u64,
    stride: u64,
    /// Offset of an entry's pointer to its name.
    name: u64,
}

impl Table {
    /// Calls `visit` with each entry and its name, and skips invalid entries.
    fn each(
        &self,
        memory: &impl Memory,
        mut visit: impl FnMut(&[u8], String) -> Option<()>,
    ) -> Result<(), Error> {
        let stride = usize::try_from(self.stride).ok().filter(|stride| (8..=MAX_STRIDE).contains(stride));
        let stride = stride.ok_or(Error::Unreadable("structure tables"))?;
        for index in 0..MAX_ENTRIES {
            let at = self.at.wrapping_add(index * self.stride);
            let entry = memory.bytes(at, stride).ok_or(Error::Unreadable("structure tables"))?;
            match word(&entry, self.name) {
                None | Some(0) => return Ok(()),
                Some(name) => {
                    let _ = memory.text(name).and_then(|name| visit(&entry, name));
                }
            }
        }
        Ok(())
    }
}

fn word(entry: &[u8], at: u64) -> Option<u64> {
    Field { offset: at, width: 8 }.of(entry).or_else(|| Field { offset: at, width: 4 }.of(entry))
}
