//! References with colours: ZGC's. By its colour it is known whether a reference is up to date.

use super::{Continuations, barrier};

/// Where a reference in an object has its address at most, where it has its colour in the same word.
const ADDRESS_SHIFT: u64 = 16;

/// By what it is known whether a reference is up to date (`src/hotspot/share/gc/z/zAddress.hpp` in the JDK). A phase in which objects
/// are moved begins in a safepoint, with a change of colours. From then on references of the colours before are stale, and those of the
/// new one lead to where objects are and stay until the next such phase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Colours {
    /// Address of the variable with the bits of which a reference has none unless it is stale.
    pub stale: u64,
    /// Address of the variable by which the rest of it becomes an address: bits that belong to it, or how far it is shifted.
    pub change: u64,
    /// Where the C library keeps the address of the thread-local variables of the JVM's library: bytes from the start of a thread's table.
    pub module: u32,
    /// Bytes from there to the pointer to the JVM's thread,
    pub thread: u32,
    /// and from that one's start to what it knows of [`stale`](Self::stale): that what is on its stack has been brought up to date,
    pub thread_stale: u32,
    /// to the outer end of its stack,
    pub stack_base: u32,
    /// and to how many bytes that has.
    pub stack_size: u32,
    /// Explicit padding, always 0.
    pub reserved: u32,
}

/// What a phase of the collector is known by: what the variables of [`Colours`] hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Phase {
    /// Bits of which a reference has none unless it is stale.
    pub stale: u64,
    /// Bits that belong to an address, or how far it is shifted.
    pub change: u64,
}

impl Phase {
    /// The address that a word with a reference in it refers to, 0 when to none; `None` when it is stale.
    #[inline(always)]
    #[must_use]
    pub const fn referred(&self, known: &Continuations, word: u64) -> Option<u64> {
        let is_shifted = known.barrier == barrier::SHIFTED;
        // One to nothing is right in all phases.
        if word == 0 || is_shifted && word >> ADDRESS_SHIFT == 0 {
            return Some(0);
        }
        if word & self.stale != 0 {
            return None;
        }
        Some(if is_shifted { word >> (self.change & 63) } else { word & known.reference_mask | self.change })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: u64 = 0x0300_1234_5678;

    /// The bits of which one is set in all references of a phase with generations.
    const COLOURS: u64 = 0xf000;

    /// Such phases: the bit that tells each, and how far an address is shifted in it, so that it begins above that bit.
    const SHIFTS: [(u64, u64); 4] = [(1 << 12, 13), (1 << 13, 14), (1 << 14, 15), (1 << 15, 16)];

    fn shifted() -> Continuations {
        Continuations { barrier: barrier::SHIFTED, reference_mask: u64::MAX, ..Continuations::default() }
    }

    fn phase_of(colour: u64, shift: u64) -> Phase {
        Phase { stale: COLOURS & !colour, change: shift }
    }

    /// ZGC without generations: 42 bits of an address, and above them the bits that tell phases, in which the memory is mapped again.
    const OFFSETS: u64 = (1 << 42) - 1;
    const MARKED_0: u64 = 1 << 42;
    const MARKED_1: u64 = 1 << 43;
    const REMAPPED: u64 = 1 << 44;
    const PHASES: [u64; 3] = [MARKED_0, MARKED_1, REMAPPED];

    fn unshifted() -> Continuations {
        Continuations { barrier: barrier::COLOURED, reference_mask: OFFSETS, ..Continuations::default() }
    }

    fn phase_of_mapping(good: u64) -> Phase {
        Phase { stale: (MARKED_0 | MARKED_1 | REMAPPED) & !good, change: good }
    }

    #[test]
    fn a_reference_of_the_phase_leads_to_its_address_whatever_the_shift() {
        for (colour, shift) in SHIFTS {
            // Lower bits tell of phases in which nothing is moved.
            for others in [0, 0x0550, 0x0aa0] {
                let word = ADDRESS << shift | colour | others;
                assert_eq!(
                    phase_of(colour, shift).referred(&shifted(), word),
                    Some(ADDRESS),
                    "{shift}, {others:#x}"
                );
            }
        }
    }

    #[test]
    fn a_reference_of_another_phase_is_stale() {
        for (colour, shift) in SHIFTS {
            for (now, by) in SHIFTS.into_iter().filter(|(now, _)| *now != colour) {
                let word = ADDRESS << shift | colour;
                assert_eq!(phase_of(now, by).referred(&shifted(), word), None, "of {shift} in {by}");
            }
        }
    }

    #[test]
    fn a_reference_to_nothing_is_right_in_all_phases() {
        for (now, by) in SHIFTS {
            let phase = phase_of(now, by);
            assert_eq!(phase.referred(&shifted(), 0), Some(0));
            for (colour, _) in SHIFTS {
                assert_eq!(phase.referred(&shifted(), colour | 0x0550), Some(0), "of {colour:#x} in {by}");
            }
        }
        for good in PHASES {
            assert_eq!(phase_of_mapping(good).referred(&unshifted(), 0), Some(0));
        }
    }

    #[test]
    fn without_generations_an_address_is_where_the_phase_has_it() {
        for good in PHASES {
            let phase = phase_of_mapping(good);
            assert_eq!(phase.referred(&unshifted(), ADDRESS | good), Some(ADDRESS | good));
            for stale in PHASES.into_iter().filter(|colour| *colour != good) {
                assert_eq!(phase.referred(&unshifted(), ADDRESS | stale), None, "{stale:#x} in {good:#x}");
            }
        }
    }

    #[test]
    fn without_generations_only_the_offset_is_the_references_own() {
        for good in PHASES {
            let phase = phase_of_mapping(good);
            for others in [0, good, 1 << 45, 1 << 63] {
                assert_eq!(
                    phase.referred(&unshifted(), ADDRESS | others),
                    Some(ADDRESS | good),
                    "{others:#x}"
                );
            }
        }
    }
}
