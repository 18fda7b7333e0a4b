//! ZGC's coloured references. The colour shows whether a reference is current.

use super::{Continuations, barrier};

/// Maximum shift of a reference's address, where the colour is in the lower bits of the same word.
const ADDRESS_SHIFT: u64 = 16;

/// Location of ZGC's colours (`src/hotspot/share/gc/z/zAddress.hpp` in the JDK). A phase that moves objects
/// begins in a safepoint, with a change of colours. From then on references with earlier colours are stale.
/// References with the new colour are valid until the next such phase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Colours {
    /// Address of the variable with the bits that only stale references have.
    pub stale: u64,
    /// Address of the variable that turns the rest of a reference into an address: bits to add, or a shift.
    pub change: u64,
    /// Offset in a thread's dtv (System V ABI) of the address of the JVM library's TLS block.
    pub module: u32,
    /// Offset of the pointer to the JVM's `Thread` in that block.
    pub thread: u32,
    /// Offset in the `Thread` of its copy of [`stale`](Self::stale), which shows that the references on its
    /// stack have been updated.
    pub thread_stale: u32,
    /// Offset in the `Thread` of the outer end of its stack.
    pub stack_base: u32,
    /// Offset in the `Thread` of the stack's size in bytes.
    pub stack_size: u32,
    /// Explicit padding, always 0.
    pub reserved: u32,
}

/// Colours of a phase: the values of the variables of [`Colours`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Phase {
    /// Bits that only stale references have.
    pub stale: u64,
    /// Bits to add to a reference, or its shift.
    pub change: u64,
}

impl Phase {
    /// The address that a reference refers to, 0 for null; `None` if the reference is stale.
    #[inline(always)]
    #[must_use]
    pub const fn referred(&self, known: &Continuations, word: u64) -> Option<u64> {
        let is_shifted = known.barrier == barrier::SHIFTED;
        // Null is valid in all phases.
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

    /// Bits of which one is set in all references of a phase, with generations.
    const COLOURS: u64 = 0xf000;

    /// Phases with generations: the bit of each, and the shift of an address, which begins above that bit.
    const SHIFTS: [(u64, u64); 4] = [(1 << 12, 13), (1 << 13, 14), (1 << 14, 15), (1 << 15, 16)];

    fn shifted() -> Continuations {
        Continuations { barrier: barrier::SHIFTED, reference_mask: u64::MAX, ..Continuations::default() }
    }

    fn phase_of(colour: u64, shift: u64) -> Phase {
        Phase { stale: COLOURS & !colour, change: shift }
    }

    /// ZGC without generations: 42 bits of an address, and above them the bits of phases, in which the memory
    /// is mapped again.
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
            // Lower bits belong to phases that move nothing.
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
