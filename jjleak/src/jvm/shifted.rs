//! Compressed pointers of HotSpot: a base, and a shift.

use super::Memory;
use super::structs::Structs;

/// Addresses of a compressed pointer's base and shift.
#[derive(Debug)]
pub(crate) struct Shifted {
    base: u64,
    shift: u64,
}

impl Shifted {
    /// Compressed references to objects.
    pub(crate) fn references(structs: &Structs) -> Option<Self> {
        Self::of(structs, "CompressedOops", "_narrow_oop")
    }

    /// Compressed references to classes.
    pub(crate) fn classes(structs: &Structs) -> Option<Self> {
        Self::of(structs, "CompressedKlassPointers", "_narrow_klass")
    }

    #[cfg(test)]
    pub(super) const fn at(base: u64, shift: u64) -> Self {
        Self { base, shift }
    }

    /// JDK 11 has them in `Universe`.
    fn of(structs: &Structs, structure: &str, before: &str) -> Option<Self> {
        let address = |name: &str| {
            let nested = format!("{before}.{name}");
            structs.address(&[(structure, name), (structure, &nested), ("Universe", &nested)]).ok()
        };
        Some(Self { base: address("_base")?, shift: address("_shift")? })
    }

    /// Base and shift.
    pub(crate) fn read(&self, memory: &impl Memory) -> Option<(u64, u32)> {
        let shift = u32::try_from(memory.number(self.shift, 4)?).ok().filter(|shift| *shift < u64::BITS)?;
        Some((memory.pointer(self.base)?, shift))
    }
}
