//! Frames of virtual threads in the Java heap (`src/hotspot/share/oops/stackChunkOop.hpp` in the JDK): see
//! [`jjleak_common::jvm::Continuations`].
//!
//! HotSpot chooses the offsets of Java fields at startup and keeps them in variables that it does not
//! describe. They are found by name in the library's symbol table, if it has one.

use jjleak_common::jvm::{Colours, Continuations, MAX_HEADER_BYTES, barrier};

use super::Memory;
use super::description::flags;
use super::shifted::Shifted;
use super::structs::{Field, Structs};
use super::zgc::{KnownColours, ZgcLayout};

/// The class of stack chunks.
const CHUNK: &str = "jdk/internal/vm/StackChunk";
/// Maximum number of classes that HotSpot knows by number; JDK 21 to 25 have up to 118.
const MAX_CLASSES: u64 = 256;
/// Flags of collectors that move objects while threads run, with the barrier that each implies, if the flag
/// alone determines it.
const MOVING: [(&str, Option<u32>); 2] = [("UseZGC", None), ("UseShenandoahGC", Some(barrier::FORWARDED))];
/// Shift of the class in an eight-byte object header (`markWord::klass_shift` in JDK 25).
const COMPACT_SHIFT: u32 = 42;
const WORD: u64 = 8;

/// Variables that are found by symbol.
pub(super) mod variable {
    pub(crate) const TAIL: &str = "_ZN28jdk_internal_vm_Continuation12_tail_offsetE";
    pub(crate) const PARENT: &str = "_ZN26jdk_internal_vm_StackChunk14_parent_offsetE";
    pub(crate) const SIZE: &str = "_ZN26jdk_internal_vm_StackChunk12_size_offsetE";
    pub(crate) const STACK_POINTER: &str = "_ZN26jdk_internal_vm_StackChunk10_sp_offsetE";
    pub(crate) const BOTTOM: &str = "_ZN26jdk_internal_vm_StackChunk14_bottom_offsetE";
    pub(crate) const STACK: &str = "_ZN23InstanceStackChunkKlass16_offset_of_stackE";
    pub(crate) const RETURN_ADDRESS: &str = "_ZN17ContinuationEntry10_return_pcE";
    pub(crate) const CLASSES: &str = "_ZN9vmClasses8_klassesE";
    pub(crate) const SAFEPOINT: &str = "_ZN20SafepointSynchronize6_stateE";
    pub(crate) const SAFEPOINTS: &str = "_ZN20SafepointSynchronize18_safepoint_counterE";
    pub(crate) const ALL: [&str; 10] =
        [TAIL, PARENT, SIZE, STACK_POINTER, BOTTOM, STACK, RETURN_ADDRESS, CLASSES, SAFEPOINT, SAFEPOINTS];
}

/// Addresses of the variables that describe continuations.
#[derive(Debug)]
pub(super) struct ContinuationLayout {
    places: [u64; 6],
    return_address: u64,
    classes: u64,
    safepoint: u64,
    safepoints: u64,
    klass: Field,
    reference: Shifted,
    narrow_klass: Shifted,
    /// Addresses of boolean flags; 0 for flags that the JVM does not have.
    compressed: u64,
    compressed_classes: u64,
    compact: u64,
    moving: [u64; 2],
    generational: u64,
    colours: ZgcLayout,
}

impl ContinuationLayout {
    /// `None` for JVMs without virtual threads or without library symbols.
    pub(super) fn of(
        memory: &impl Memory,
        structs: &Structs,
        symbol: impl Fn(&str) -> Option<u64>,
    ) -> Option<Self> {
        let flags = flags(memory, structs)?;
        let flag = |name: &str| flags.get(name).map_or(0, |(at, _)| *at);
        let [
            tail,
            parent,
            size,
            stack_pointer,
            bottom,
            stack,
            return_address,
            classes,
            safepoint,
            safepoints,
        ] = variable::ALL.map(&symbol);
        Some(Self {
            places: [tail?, parent?, size?, stack_pointer?, bottom?, stack?],
            return_address: return_address?,
            classes: classes?,
            safepoint: safepoint?,
            safepoints: safepoints?,
            klass: structs.field(&[("oopDesc", "_metadata._klass")]).ok()?,
            reference: Shifted::references(structs)?,
            narrow_klass: Shifted::classes(structs)?,
            compressed: flag("UseCompressedOops"),
            compressed_classes: flag("UseCompressedClassPointers"),
            compact: flag("UseCompactObjectHeaders"),
            moving: MOVING.map(|(name, _)| flag(name)),
            generational: flag("ZGenerational"),
            colours: ZgcLayout::of(structs, symbol),
        })
    }

    /// The reason why frames cannot be followed under the current collector, if that is permanent; only known
    /// of ZGC.
    pub(super) fn lacks(&self, memory: &impl Memory) -> Option<&'static str> {
        let is_on = |flag| is_on(memory, flag);
        let [zgc, _] = self.moving;
        is_on(zgc).then(|| self.colours.lacks(is_on(self.generational)))?
    }

    /// Reads the variables once the JVM has its classes. `None` before, and under a collector that moves
    /// objects in unknown ways. `class_name` returns the name of the class at an address.
    pub(super) fn read(
        &self,
        memory: &impl Memory,
        class_name: impl Fn(u64) -> Option<String>,
    ) -> Option<Continuations> {
        let is_on = |flag| is_on(memory, flag);
        let moving = MOVING.iter().zip(self.moving).find(|(_, flag)| is_on(*flag));
        let colours = match moving.map(|((_, barrier), _)| *barrier) {
            Some(None) => self.colours.read(memory, is_on(self.generational))?,
            known => KnownColours {
                mask: u64::MAX,
                barrier: known.flatten().unwrap_or(barrier::NONE),
                colours: Colours::default(),
            },
        };
        let classes =
            (0..MAX_CLASSES).filter_map(|index| memory.pointer(self.classes.wrapping_add(WORD * index)));
        let klass = { classes }.find(|class| *class != 0 && class_name(*class).as_deref() == Some(CHUNK))?;
        let [tail, parent, size, stack_pointer, bottom, stack] = self.places.map(|place| {
            let bytes = memory.number(place, 4)?;
            let is_place = bytes.is_multiple_of(4) && (1..MAX_HEADER_BYTES as u64).contains(&bytes);
            u32::try_from(bytes / 4).ok().filter(|_| is_place)
        });
        let (reference_base, reference_shift) =
            if is_on(self.compressed) { self.reference.read(memory)? } else { (0, 0) };
        let reference_mask = if is_on(self.compressed) { u64::from(u32::MAX) } else { colours.mask };
        let is_compressed = is_on(self.compressed_classes) || is_on(self.compact);
        let (klass_base, klass_shift) = if is_compressed { self.narrow_klass.read(memory)? } else { (0, 0) };
        let narrow = klass.wrapping_sub(klass_base) >> klass_shift;
        let (klass, klass_mask, klass_at) = if is_on(self.compact) {
            (narrow << COMPACT_SHIFT, u64::MAX << COMPACT_SHIFT, 0)
        } else {
            let mask = if is_compressed { u64::from(u32::MAX) } else { u64::MAX };
            (narrow & mask, mask, u32::try_from(self.klass.offset / 4).ok()?)
        };
        let known = Continuations {
            klass,
            klass_mask,
            reference_mask,
            reference_shift,
            klass_at,
            reference_base,
            return_address: self.return_address,
            safepoint: self.safepoint,
            safepoints: self.safepoints,
            tail: tail?,
            parent: parent?,
            size: size?,
            stack_pointer: stack_pointer?,
            bottom: bottom?,
            stack: stack?,
            barrier: colours.barrier,
            reserved: 0,
            colours: colours.colours,
        };
        (klass != 0 && u64::from(known.klass_at) < MAX_HEADER_BYTES as u64 / 4).then_some(known)
    }
}

/// Returns whether the flag at this address is on; 0 means that there is no such flag.
fn is_on(memory: &impl Memory, flag: u64) -> bool {
    flag != 0 && memory.number(flag, 1).is_some_and(|value| value != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jvm::tests::image::Words;

    /// Addresses of the flags for compressed references, compressed class pointers, compact headers, ZGC, and
    /// Shenandoah.
    const FLAGS: [usize; 5] = [200, 201, 202, 203, 204];
    const CLASSES: usize = 100;
    const CLASS: u64 = 0x8_0000_1000;

    /// A JVM with these flags on, whose chunks have their fields at offsets 8, 12 and so on.
    fn read(on: &[usize], class: &str) -> Option<Continuations> {
        let mut memory = vec![0; 512];
        memory[10..16].copy_from_slice(&[8, 12, 16, 20, 24, 48]);
        memory[20..24].copy_from_slice(&[0x1000, 3, 0x8_0000_0000, 0]);
        memory[CLASSES..CLASSES + 2].copy_from_slice(&[0, CLASS]);
        for flag in on {
            memory[*flag] = 1;
        }
        let at = |index: usize| 8 * index as u64;
        let [compressed, compressed_classes, compact, zgc, shenandoah] = FLAGS.map(at);
        let layout = ContinuationLayout {
            places: [10, 11, 12, 13, 14, 15].map(at),
            return_address: 0x7777,
            classes: at(CLASSES),
            safepoint: 0x8888,
            safepoints: 0x9999,
            klass: Field { offset: 8, width: 8 },
            reference: Shifted::at(at(20), at(21)),
            narrow_klass: Shifted::at(at(22), at(23)),
            compressed,
            compressed_classes,
            compact,
            moving: [zgc, shenandoah],
            generational: 0,
            colours: ZgcLayout::default(),
        };
        layout.read(&Words(memory), |at| (at == CLASS).then(|| class.to_owned()))
    }

    #[test]
    fn places_are_counted_in_words_of_4_bytes() {
        let known = read(&FLAGS[..2], CHUNK).unwrap();
        assert_eq!((known.tail, known.parent, known.size), (2, 3, 4));
        assert_eq!((known.stack_pointer, known.bottom, known.stack), (5, 6, 12));
        assert_eq!((known.klass_at, known.return_address), (2, 0x7777));
        assert_eq!((known.safepoint, known.safepoints), (0x8888, 0x9999));
    }

    #[test]
    fn references_and_classes_are_compressed_or_not() {
        let compressed = read(&FLAGS[..2], CHUNK).unwrap();
        assert_eq!((compressed.klass, compressed.klass_mask), (0x1000, 0xffff_ffff));
        assert_eq!(compressed.referred(0xabcd_0000_0002), 0x1010);
        assert_eq!(compressed.referred(0xabcd_0000_0000), 0);
        let plain = read(&[], CHUNK).unwrap();
        assert_eq!((plain.klass, plain.klass_mask), (CLASS, u64::MAX));
        assert_eq!(plain.referred(0xabcd_0000_0002), 0xabcd_0000_0002);
        let compact = read(&FLAGS[..3], CHUNK).unwrap();
        assert_eq!((compact.klass, compact.klass_at), (0x1000 << 42, 0));
    }

    #[test]
    fn how_references_are_kept_right_is_known_by_the_collector() {
        assert_eq!(read(&FLAGS[..2], CHUNK).unwrap().barrier, barrier::NONE);
        assert_eq!(read(&[FLAGS[0], FLAGS[1], FLAGS[4]], CHUNK).unwrap().barrier, barrier::FORWARDED);
    }

    #[test]
    fn nothing_is_known_before_there_are_classes_and_with_a_collector_that_moves_objects_in_unknown_ways() {
        assert_eq!(read(&FLAGS[..2], "java/lang/Object"), None);
        assert_eq!(read(&[FLAGS[0], FLAGS[1], FLAGS[3]], CHUNK), None);
    }
}
