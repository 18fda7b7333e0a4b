//! Inlined methods at a position in compiled code. For each call, the compiler records the method and
//! bytecode that it belongs to, and the method that this one was inlined into (`PcDesc` and `ScopeDesc`,
//! `src/hotspot/share/code/` in the JDK).

use std::ops::Range;

use super::blob::Blob;
use super::structs::{Field, Structs};
use super::unsigned5::{Encoding, Numbers};
use super::{Error, Memory};

/// Maximum depth of inlining; HotSpot's default is 15 (`-XX:MaxInlineLevel`).
const MAX_INLINED: usize = 128;
/// Maximum size of a compiled method's table. HotSpot does not compile methods beyond some hundred KiB of
/// machine code (`MaxNodeLimit`, `NMethodSizeLimit`), and describes only their calls, each in 16 bytes of one
/// table and a few of the other.
const MAX_TABLE_BYTES: u64 = 1 << 20;
/// Maximum number of bytes before a blob's code that locate its tables; JDK 11 to 25 have up to 370.
const MAX_HEADER_BYTES: u64 = 1024;
const WORD: u64 = 8;

/// Layout of the tables.
#[derive(Debug)]
pub(super) struct ScopeLayout {
    tables: Tables,
    /// Bytes from a blob's start that contain all these fields.
    header_bytes: usize,
    place_bytes: u64,
    place_pc: Field,
    place_scope: Field,
    encoding: Encoding,
}

#[derive(Debug)]
enum Tables {
    /// In the blob itself: offsets from its start, except for the scopes; the places follow them. Until JDK
    /// 22.
    Inside { metadata: Field, scopes: Scopes, places: Field, places_end: Field },
    /// In memory of their own: metadata after the relocations, and offsets into the immutable data. Since JDK
    /// 25.
    Outside {
        mutable: Field,
        relocations: Field,
        fixed: Field,
        fixed_size: Field,
        places: Field,
        scopes: Field,
    },
}

/// Representation of the position of a blob's scopes.
#[derive(Debug)]
enum Scopes {
    Address(Field),
    /// By their offset from its start; until JDK 8.
    Offset(Field),
}

impl Scopes {
    /// `None` if they are in memory of their own.
    fn of(structs: &Structs) -> Option<Self> {
        let address = structs.field(&[("CompiledMethod", "_scopes_data_begin")]).map(Self::Address);
        let offset = || structs.field(&[("nmethod", "_scopes_data_offset")]).map(Self::Offset);
        let is_inside = structs.field(&[("nmethod", "_immutable_data")]).is_err();
        address.ok().or_else(|| offset().ok().filter(|_| is_inside))
    }
}

/// A method and a position in its bytecode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scope {
    pub(super) method: u64,
    pub(super) bytecode_index: u32,
}

/// The tables of one blob: scopes and places side by side, and the metadata before them or elsewhere.
struct Located {
    places: Range<u64>,
    scopes: Range<u64>,
    /// Only some versions specify its end.
    metadata: Range<u64>,
}

impl Located {
    /// Address range of the tables that lie side by side.
    fn all(&self) -> Range<u64> {
        let start = self.places.start.min(self.scopes.start);
        let is_in_front = self.metadata.end == start;
        let start = if is_in_front { self.metadata.start } else { start };
        start..self.places.end.max(self.scopes.end)
    }
}

impl ScopeLayout {
    pub(super) fn of(structs: &Structs, version: u64) -> Result<Self, Error> {
        let nmethod = |name| structs.field(&[("nmethod", name)]);
        let tables = match Scopes::of(structs) {
            Some(scopes) => Tables::Inside {
                metadata: nmethod("_metadata_offset")?,
                scopes,
                places: nmethod("_scopes_pcs_offset")?,
                places_end: nmethod("_dependencies_offset")?,
            },
            None => Tables::Outside {
                mutable: structs.field(&[("CodeBlob", "_mutable_data")])?,
                relocations: structs.field(&[("CodeBlob", "_relocation_size")])?,
                fixed: nmethod("_immutable_data")?,
                fixed_size: nmethod("_immutable_data_size")?,
                places: nmethod("_scopes_pcs_offset")?,
                scopes: nmethod("_scopes_data_offset")?,
            },
        };
        let header_bytes = tables.header_bytes().ok_or_else(too_large)?;
        Ok(Self {
            tables,
            header_bytes,
            place_bytes: structs.size("PcDesc")?,
            place_pc: structs.field(&[("PcDesc", "_pc_offset")])?,
            place_scope: structs.field(&[("PcDesc", "_scope_decode_offset")])?,
            encoding: Encoding::of_version(version),
        })
    }

    pub(super) const fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// The methods at a return address in compiled code, innermost first. `None` if its tables are invalid:
    /// it may be other code by now.
    pub(super) fn at(&self, memory: &impl Memory, blob: &Blob, return_address: u64) -> Option<Vec<Scope>> {
        let copy = memory.bytes(blob.at, self.header_bytes)?;
        let tables = self.tables.of(&copy, blob.at)?;
        let read = |at: &Range<u64>| {
            let length = at.end.checked_sub(at.start).filter(|length| *length <= MAX_TABLE_BYTES)?;
            memory.bytes(at.start, usize::try_from(length).ok()?)
        };
        // They lie side by side, and one read costs hardly more than the shortest of three.
        let all = tables.all();
        let copy = read(&all)?;
        let table = |at: &Range<u64>| {
            let from_start = |place: u64| usize::try_from(place.checked_sub(all.start)?).ok();
            copy.get(from_start(at.start)?..from_start(at.end)?)
        };
        let first = self.scope_at(table(&tables.places)?, return_address.checked_sub(blob.code.start)?)?;
        let chain = self.chain(table(&tables.scopes)?, first)?;
        let start = tables.metadata.start;
        let needed = chain.iter().map(|(method, _)| WORD * (method + 1)).max()?;
        let metadata = match table(&tables.metadata) {
            Some(metadata) => metadata,
            None => &read(&(start..start.checked_add(needed)?))?,
        };
        chain
            .into_iter()
            .map(|(method, bytecode_index)| {
                let method = Field { offset: WORD * method, width: 8 }.of(metadata)?;
                Some(Scope { method, bytecode_index })
            })
            .collect()
    }

    /// Offset of the scope of a return address. Calls that need no scope of their own have that of the next
    /// place.
    fn scope_at(&self, places: &[u8], pc: u64) -> Option<usize> {
        let pc = i64::try_from(pc).ok()?;
        let bytes = usize::try_from(self.place_bytes).ok().filter(|bytes| *bytes > 0)?;
        let is_behind = |place: &[u8]| self.place_pc.of_signed(place).is_some_and(|at| at >= pc);
        let place = places.chunks_exact(bytes).find(|place| is_behind(place))?;
        let scope = self.place_scope.of_signed(place)?;
        usize::try_from(scope).ok().filter(|scope| *scope > 0)
    }

    /// The methods, by index into the blob's metadata, and their bytecode positions.
    fn chain(&self, scopes: &[u8], first: usize) -> Option<Vec<(u64, u32)>> {
        let mut chain = Vec::new();
        let mut at = first;
        while at > 0 && chain.len() < MAX_INLINED {
            let mut numbers = Numbers::new(scopes.get(at..)?, self.encoding);
            let sender = usize::try_from(numbers.next()?).ok()?;
            let method = u64::from(numbers.next()?.checked_sub(1)?);
            // Bytecode indices begin at -1: before the first.
            let bytecode_index = numbers.next()?.saturating_sub(1);
            chain.push((method, bytecode_index));
            // The caller of an inlined method is described before it.
            at = if sender < at { sender } else { 0 };
        }
        (!chain.is_empty()).then_some(chain)
    }
}

fn too_large() -> Error {
    Error::Unknown("compiled method of a plausible size".to_owned())
}

impl Tables {
    /// Bytes of a blob that contain all these fields.
    fn header_bytes(&self) -> Option<usize> {
        let ends = match self {
            Self::Inside { metadata, scopes, places, places_end } => {
                let (Scopes::Address(scopes) | Scopes::Offset(scopes)) = scopes;
                [metadata, scopes, places, places_end].map(|field| field.end()).into_iter().max()
            }
            Self::Outside { mutable, relocations, fixed, fixed_size, places, scopes } => {
                let fields = [mutable, relocations, fixed, fixed_size, places, scopes];
                fields.map(|field| field.end()).into_iter().max()
            }
        };
        ends.filter(|end| *end <= MAX_HEADER_BYTES).and_then(|end| usize::try_from(end).ok())
    }

    /// Locates the tables with a copy of the start of the blob at `at`.
    fn of(&self, copy: &[u8], at: u64) -> Option<Located> {
        let read = |field: &Field| field.of(copy);
        match self {
            Self::Inside { metadata, scopes, places, places_end } => {
                let from_start = |field| Some(at.wrapping_add(read(field)?));
                let scopes = match scopes {
                    Scopes::Address(field) => read(field)?,
                    Scopes::Offset(field) => from_start(field)?,
                };
                let places = from_start(places)?;
                Some(Located {
                    places: places..from_start(places_end)?,
                    scopes: scopes..places,
                    metadata: from_start(metadata)?..scopes,
                })
            }
            Self::Outside { mutable, relocations, fixed, fixed_size, places, scopes } => {
                let start = read(fixed)?;
                let scopes = start.wrapping_add(read(scopes)?);
                Some(Located {
                    places: start.wrapping_add(read(places)?)..scopes,
                    scopes: scopes..start.wrapping_add(read(fixed_size)?),
                    metadata: read(mutable)?.wrapping_add(read(relocations)?)..u64::MAX,
                })
            }
        }
    }
}
