//! Classes by name, their fields, and their mirrors (`src/hotspot/share/oops` in the JDK).

use super::{Reader, Reading, Unknown, structures};
use crate::jvm::Memory;
use crate::jvm::objects::{ObjectLayout, ObjectReferences};
use crate::jvm::unsigned5::{Encoding, Numbers};

/// Maximum number of classes that are walked through: reading one takes 2 µs.
const MAX_CLASSES: usize = 1 << 14;
/// Maximum number of fields of a class, and maximum size of their description.
const MAX_FIELDS: u32 = 1 << 10;
const MAX_FIELD_BYTES: usize = 16 << 10;
/// Bytes of a name that are read: more than the names that are looked for have.
const MAX_SYMBOL: usize = 64;
/// Two-byte words that describe a field, until JDK 20 (`fieldInfo.hpp`).
const SLOTS: usize = 6;
/// Bits of an offset's low word that hold a tag.
const TAG_BITS: u32 = 2;
/// `JVM_ACC_FIELD_INTERNAL`: a field that HotSpot has added, whose name is not in the class's pool.
const INTERNAL: u16 = 0x400;
/// Bits of a field's flags with which another number follows: an initial value, a generic signature, and a contention group.
const OPTIONAL: [u32; 3] = [1 << 0, 1 << 2, 1 << 4];
/// A class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Class(u64);

/// A name: the start of a `Symbol`.
struct Symbol {
    length: u64,
    /// Offset of the first character.
    body: usize,
    copy: [u8; MAX_SYMBOL],
    read: usize,
}

impl Symbol {
    fn is(&self, text: &str) -> bool {
        let end = self.body.saturating_add(text.len());
        self.length == text.len() as u64
            && self.copy[..self.read].get(self.body..end) == Some(text.as_bytes())
    }
}

/// Classes of a JVM.
pub(super) struct Classes<'a, M> {
    reader: &'a Reader<'a, M>,
    version: u64,
    references: ObjectReferences,
}

impl<'a, M: Memory> Classes<'a, M> {
    pub(super) fn of(reader: &'a Reader<'a, M>) -> Reading<Self> {
        let layout = ObjectLayout::of(reader.memory, reader.structs).ok_or(Unknown::Unreadable)?;
        let references = layout.read(reader.memory).ok_or(Unknown::Undescribed)?;
        let version = reader.structs.version(reader.memory);
        Ok(Self { reader, version, references })
    }

    /// The same, read by another reader.
    pub(super) const fn read_by<'b, N>(&self, reader: &'b Reader<'b, N>) -> Classes<'b, N> {
        Classes { reader, version: self.version, references: self.references }
    }

    /// Finds a class of each name; those of the loader of the JDK's own classes first.
    pub(super) fn find<const COUNT: usize>(&self, names: [&str; COUNT]) -> Reading<[Option<Class>; COUNT]> {
        let mut found = [None; COUNT];
        let mut left = MAX_CLASSES;
        for loader in self.loaders()? {
            // A class whose description is not in memory ends the list of its loader; one whose name is not has never been asked for.
            let mut next = self.reader.field(loader, &[("ClassLoaderData", "_klasses")]).unwrap_or(0);
            while next != 0 && left > 0 {
                left -= 1;
                let name = self.reader.field(next, &[("Klass", "_name")]).and_then(|name| self.symbol(name));
                let known = name.ok().and_then(|name| names.iter().position(|wanted| name.is(wanted)));
                if let Some(found) = known.map(|index| &mut found[index]).filter(|found| found.is_none()) {
                    *found = Some(Class(next));
                }
                if found.iter().all(Option::is_some) {
                    return Ok(found);
                }
                next = self.reader.field(next, &[("Klass", "_next_link")]).unwrap_or(0);
            }
        }
        Ok(found)
    }

    /// Loaders; the one without an object first, which loads the JDK's own classes.
    fn loaders(&self) -> Reading<Vec<u64>> {
        let with_object =
            |loader| Ok((self.reader.field(loader, &[("ClassLoaderData", "_class_loader")])?, loader));
        let mut loaders =
            structures::loaders(self.reader)?.into_iter().map(with_object).collect::<Reading<Vec<_>>>()?;
        loaders.sort_by_key(|(object, _)| *object != 0);
        Ok(loaders.into_iter().map(|(_, loader)| loader).collect())
    }

    fn symbol(&self, at: u64) -> Reading<Symbol> {
        let field = |name| self.reader.structs.field(&[("Symbol", name)]).map_err(|_| Unknown::Undescribed);
        let (length, body) = (field("_length")?, field("_body")?);
        let mut copy = [0; MAX_SYMBOL];
        let read = self.reader.memory.read(at, &mut copy);
        Ok(Symbol {
            length: length.of(&copy[..read]).ok_or(Unknown::Unreadable)?,
            body: usize::try_from(body.offset).map_err(|_| Unknown::Implausible)?,
            copy,
            read,
        })
    }

    /// Offset of a field that a class declares: of a static one in the class's mirror, otherwise in an object.
    pub(super) fn offset(&self, class: Class, field: &str) -> Reading<u64> {
        let described =
            |name| self.reader.structs.field(&[("InstanceKlass", name)]).map_err(|_| Unknown::Undescribed);
        let pool = self.reader.field(class.0, &[("InstanceKlass", "_constants")])?;
        let found = if let Ok(stream) = described("_fieldinfo_stream") {
            let bytes =
                self.array(stream.read(self.reader.memory, class.0).ok_or(Unknown::Unreadable)?, 1)?;
            self.in_stream(&bytes, pool, field)?
        } else {
            let fields =
                described("_fields")?.read(self.reader.memory, class.0).ok_or(Unknown::Unreadable)?;
            self.in_slots(&self.array(fields, 2)?, pool, field)?
        };
        found.ok_or(Unknown::Undescribed)
    }

    /// Elements of an `Array`: its length, then elements of this size.
    fn array(&self, at: u64, size: usize) -> Reading<Vec<u8>> {
        let length = self.reader.memory.number(at, 4).ok_or(Unknown::Unreadable)?;
        let bytes = usize::try_from(length).unwrap_or(usize::MAX).saturating_mul(size);
        if bytes > MAX_FIELD_BYTES {
            return Err(Unknown::Implausible);
        }
        self.reader.memory.bytes(at.wrapping_add(4), bytes).ok_or(Unknown::Unreadable)
    }

    /// Until JDK 20: six words a field.
    fn in_slots(&self, bytes: &[u8], pool: u64, field: &str) -> Reading<Option<u64>> {
        for slots in bytes.chunks_exact(2 * SLOTS) {
            let slot = |at: usize| u16::from_le_bytes([slots[2 * at], slots[2 * at + 1]]);
            if slot(0) & INTERNAL == 0 && self.is_pooled(pool, slot(1).into(), field)? {
                return Ok(Some(u64::from(u32::from(slot(5)) << 16 | u32::from(slot(4))) >> TAG_BITS));
            }
        }
        Ok(None)
    }

    /// Since JDK 21: compressed numbers.
    fn in_stream(&self, bytes: &[u8], pool: u64, field: &str) -> Reading<Option<u64>> {
        let mut numbers = Numbers::new(bytes, Encoding::of_version(self.version));
        let mut next = || numbers.next().ok_or(Unknown::Implausible);
        // The fields that HotSpot has added come last.
        let (declared, _) = (next()?, next()?);
        for _ in 0..declared.min(MAX_FIELDS) {
            let (name, _, offset, _, flags) = (next()?, next()?, next()?, next()?, next()?);
            for _ in OPTIONAL.iter().filter(|bit| flags & **bit != 0) {
                next()?;
            }
            if self.is_pooled(pool, name.into(), field)? {
                return Ok(Some(offset.into()));
            }
        }
        Ok(None)
    }

    fn is_pooled(&self, pool: u64, index: u64, text: &str) -> Reading<bool> {
        if index >= self.reader.field(pool, &[("ConstantPool", "_length")])? {
            return Err(Unknown::Implausible);
        }
        let entries = self.reader.structs.size("ConstantPool").map_err(|_| Unknown::Undescribed)?;
        Ok(self.symbol(self.reader.word(pool.wrapping_add(entries).wrapping_add(8 * index))?)?.is(text))
    }

    /// The object of a class that holds its static fields.
    pub(super) fn mirror(&self, class: Class, of_mirrors: Class) -> Reading<u64> {
        let handle = self.reader.field(class.0, &[("Klass", "_java_mirror")])?;
        self.object(self.reader.word(handle)?, of_mirrors)
    }

    /// The object that a static field refers to; it is of this class.
    pub(super) fn referred(&self, mirror: u64, offset: u64, class: Class) -> Reading<u64> {
        let at = mirror.wrapping_add(offset);
        let reference = self.references.reference(self.reader.memory, at).ok_or(Unknown::Unreadable)?;
        self.object(reference, class)
    }

    /// Address of an object of this class, whose reference may be coloured.
    fn object(&self, reference: u64, class: Class) -> Reading<u64> {
        if reference == 0 {
            return Err(Unknown::Undescribed);
        }
        let object = self.references.object(self.reader.memory, reference, |found| found == class.0);
        object.ok_or(Unknown::Unreadable)
    }
}
