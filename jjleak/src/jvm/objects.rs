//! Objects in a Java heap: their addresses, whatever the collector, and their classes (`src/hotspot/share/oops` in the JDK).

use super::Memory;
use super::description::flags;
use super::shifted::Shifted;
use super::structs::{Field, Structs};

/// Mask and value of the mark of an object that has moved, with its new address.
const MARK_MASK: u64 = 3;
const MOVED: u64 = 3;
/// Shift of the class in an eight-byte object header (`markWord::klass_shift` in JDK 25).
const COMPACT_SHIFT: u32 = 42;
/// Bits of a coloured reference of generational ZGC from which the shift of its address follows (`ZPointerRemappedMask`).
const REMAPPED_SHIFT: u32 = 12;
const REMAPPED_MASK: u64 = 15;
/// Bits of an offset in the heap of ZGC without generations, and the bits that its views add.
const ZGC_OFFSET_BITS: u32 = 42;
const ZGC_VIEWS: u32 = 3;

/// Flags and fields that say how objects refer to each other and to their classes.
#[derive(Debug)]
pub(crate) struct ObjectLayout {
    /// Address of the flag; `None` before JDK 24.
    uses_compact_headers: Option<u64>,
    uses_narrow_classes: Option<u64>,
    uses_narrow_references: Option<u64>,
    classes: Option<Shifted>,
    references: Option<Shifted>,
    class: Field,
}

impl ObjectLayout {
    /// `None` if this version does not describe it.
    pub(crate) fn of(memory: &impl Memory, structs: &Structs) -> Option<Self> {
        let flags = flags(memory, structs)?;
        let flag = |name: &str| flags.get(name).map(|(at, _)| *at);
        Some(Self {
            uses_compact_headers: flag("UseCompactObjectHeaders"),
            uses_narrow_classes: flag("UseCompressedClassPointers"),
            uses_narrow_references: flag("UseCompressedOops"),
            classes: Shifted::classes(structs),
            references: Shifted::references(structs),
            class: structs.field(&[("oopDesc", "_metadata._klass")]).ok()?,
        })
    }

    /// Reads how this JVM's objects refer to each other. Valid once its flags are final.
    pub(crate) fn read(&self, memory: &impl Memory) -> Option<ObjectReferences> {
        let is_on = |flag: Option<u64>| flag.and_then(|at| memory.number(at, 1)) == Some(1);
        let shifted = |shifted: &Option<Shifted>| shifted.as_ref()?.read(memory);
        let is_compact = is_on(self.uses_compact_headers);
        let narrow_classes = is_compact || is_on(self.uses_narrow_classes);
        Some(ObjectReferences {
            is_compact,
            classes: if narrow_classes { Some(shifted(&self.classes)?) } else { None },
            references: if is_on(self.uses_narrow_references) {
                Some(shifted(&self.references)?)
            } else {
                None
            },
            class: self.class,
        })
    }
}

/// References of a JVM's objects to each other, and to their classes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ObjectReferences {
    is_compact: bool,
    /// Base and shift of compressed references.
    classes: Option<(u64, u32)>,
    references: Option<(u64, u32)>,
    class: Field,
}

impl ObjectReferences {
    /// The reference in a field of an object; 0 for none.
    pub(crate) fn reference(&self, memory: &impl Memory, at: u64) -> Option<u64> {
        let Some((base, shift)) = self.references else { return memory.pointer(at) };
        let narrow = memory.number(at, 4)?;
        Some(if narrow == 0 { 0 } else { base.wrapping_add(narrow << shift) })
    }

    /// Address of the object that a reference leads to, which may be coloured: the object there is of such a class.
    pub(crate) fn object(
        &self,
        memory: &impl Memory,
        reference: u64,
        is_such: impl Fn(u64) -> bool,
    ) -> Option<u64> {
        let shifts = (reference >> REMAPPED_SHIFT) & REMAPPED_MASK;
        let uncoloured =
            shifts.is_power_of_two().then(|| reference >> (REMAPPED_SHIFT + 1 + shifts.trailing_zeros()));
        let offset = reference & ((1 << ZGC_OFFSET_BITS) - 1);
        let views = (0..ZGC_VIEWS).map(|view| offset | 1 << (ZGC_OFFSET_BITS + view));
        let candidates = [Some(reference), uncoloured].into_iter().flatten().chain(views);
        let moved = |at: u64| {
            let mark = memory.pointer(at)?;
            Some(if mark & MARK_MASK == MOVED { mark & !MARK_MASK } else { at })
        };
        { candidates }
            .filter(|at| *at != 0)
            .filter_map(moved)
            .find(|at| self.class_of(memory, *at).is_some_and(&is_such))
    }

    /// The class (`Klass`) of an object.
    pub(crate) fn class_of(&self, memory: &impl Memory, object: u64) -> Option<u64> {
        let (base, shift) = self.classes.unwrap_or((0, 0));
        let number = if self.is_compact {
            memory.pointer(object)? >> COMPACT_SHIFT
        } else {
            let width = if self.classes.is_some() { 4 } else { 8 };
            memory.number(object.wrapping_add(self.class.offset), width)?
        };
        Some(base.wrapping_add(number << shift))
    }
}
