//! The 64-bit attach cookie, which describes a probe site to its BPF program.
//!
//! One BPF program serves all functions of a role; the cookie identifies their arguments. Supporting another
//! allocator function therefore takes a row in a table of the user side, not a new program.

use crate::process::ProcessSlot;

/// An integer argument register of the System V calling convention, from 0 (`rdi`) to 5 (`r9`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Arg(u8);

impl Arg {
    /// Number of arguments passed in integer registers.
    pub const COUNT: u8 = 6;

    /// The `index`-th argument; `None` if it is not passed in a register.
    #[must_use]
    pub const fn new(index: u8) -> Option<Self> {
        if index < Self::COUNT { Some(Self(index)) } else { None }
    }

    /// Number of the argument, from 0 to 5.
    #[must_use]
    pub const fn index(self) -> u8 {
        self.0
    }
}

/// First argument.
pub const ARG0: Arg = Arg(0);
/// Second argument.
pub const ARG1: Arg = Arg(1);
/// Third argument.
pub const ARG2: Arg = Arg(2);
/// Fourth argument.
pub const ARG3: Arg = Arg(3);
/// Fifth argument.
pub const ARG4: Arg = Arg(4);

/// Location of the pointer to the new block after a successful call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResultIn {
    /// In the return register; null means failure.
    Return,
    /// In the memory that the `pointer` argument points to; a nonzero return value means failure
    /// (`posix_memalign`).
    Pointee,
}

/// Meaning of an allocator function's arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Signature {
    /// The requested size in bytes.
    pub size: Option<Arg>,
    /// A factor of the size: the number of elements of `calloc` and `reallocarray`.
    pub count: Option<Arg>,
    /// The block to free or resize, or the address for the result (see [`ResultIn::Pointee`]).
    pub pointer: Option<Arg>,
    /// Bytes that the call may return beyond the size (jemalloc's `xallocx`).
    pub extra: Option<Arg>,
    /// Location of the result.
    pub result: ResultIn,
    /// True if resizing a block to 0 bytes frees it and returns null (glibc's `realloc`). For a function that frees:
    /// see [`Self::passes_on`].
    pub zero_frees: bool,
}

impl Signature {
    /// No arguments, as a base for others.
    pub const NOTHING: Self = Self {
        size: None,
        count: None,
        pointer: None,
        extra: None,
        result: ResultIn::Return,
        zero_frees: false,
    };

    /// Returns true if a function that frees may pass the block on to another allocator's `free`, as wrappers do.
    #[inline(always)]
    #[must_use]
    pub const fn passes_on(&self) -> bool {
        self.zero_frees
    }
}

/// Data available at an instruction inside an allocation function, where the arguments may have been
/// overwritten. `rax` holds the block that the call will return, where it is known, or null if the call will
/// fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Inside {
    /// The register with the requested size, by its number in instruction encodings.
    pub size: u8,
    /// Distance from the canonical frame address down to the saved frame pointer of the caller, in words; 0
    /// if it is in `rbp`.
    pub frame_pointer_words: u8,
    /// Offset of this instruction from the function's first one, in bytes.
    pub distance: i32,
}

impl Inside {
    /// Registers that can hold the size, by number: callee-saved ones, and `rsi` and `rdi`, which pass a size
    /// on.
    pub const SIZE_REGISTERS: [u8; 8] = [3, 5, 6, 7, 12, 13, 14, 15];
    /// The largest [`Self::frame_pointer_words`] that a cookie can carry.
    pub const MAX_FRAME_POINTER_WORDS: u8 = (1 << 6) - 1;
    /// The largest [`Self::distance`] that a cookie can carry, in either direction.
    pub const MAX_DISTANCE: i32 = (1 << 22) - 1;
}

/// A decoded attach cookie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cookie {
    /// The process that the event is accounted to.
    pub process: ProcessSlot,
    /// Meaning of the arguments.
    pub signature: Signature,
    /// Distance in 8-byte words from the stack pointer at the site up to the canonical frame address: the
    /// stack pointer just before the call instruction pushed the return address. 1 at a function's entry. See also
    /// [`Self::of_sample`].
    pub cfa_words: u16,
    /// For a site inside a function; it replaces the signature.
    pub inside: Option<Inside>,
}

const NO_ARG: u64 = 7;
const ARG_BITS: u64 = 3;
const ARG_MASK: u64 = (1 << ARG_BITS) - 1;
const SIZE_SHIFT: u64 = 16;
const COUNT_SHIFT: u64 = SIZE_SHIFT + ARG_BITS;
const POINTER_SHIFT: u64 = COUNT_SHIFT + ARG_BITS;
const EXTRA_SHIFT: u64 = POINTER_SHIFT + ARG_BITS;
const POINTEE_SHIFT: u64 = EXTRA_SHIFT + ARG_BITS;
const ZERO_FREES_SHIFT: u64 = POINTEE_SHIFT + 1;
const CFA_SHIFT: u64 = ZERO_FREES_SHIFT + 1;
const CFA_MASK: u64 = Cookie::MAX_CFA_WORDS as u64;
const INSIDE_SHIFT: u64 = CFA_SHIFT + 10;
const DISTANCE_SHIFT: u64 = INSIDE_SHIFT + 1;
/// These bits overlap the signature's, which a site inside a function does not need.
const SIZE_REGISTER_SHIFT: u64 = 16;
const FRAME_POINTER_SHIFT: u64 = SIZE_REGISTER_SHIFT + 4;
const REGISTER_MASK: u64 = (1 << 4) - 1;
/// Bits of a signature without arguments.
const NO_ARGUMENTS: u64 = ((1 << (4 * ARG_BITS)) - 1) << SIZE_SHIFT;

const _: () = assert!(FRAME_POINTER_SHIFT + 6 <= CFA_SHIFT && DISTANCE_SHIFT + 23 == 64);

impl Cookie {
    /// The largest distance to the canonical frame address that a cookie can carry.
    pub const MAX_CFA_WORDS: u16 = (1 << 10) - 1;

    /// Cookie of a probe at which a program announces samples; `site` is the number of its arguments.
    #[must_use]
    pub const fn of_sample(process: ProcessSlot, site: u16) -> Self {
        Self { process, signature: Signature::NOTHING, cfa_words: site, inside: None }
    }

    /// The number of the arguments, for a cookie from [`Self::of_sample`].
    #[inline(always)]
    #[must_use]
    pub const fn sample_site(&self) -> u16 {
        self.cfa_words
    }

    /// Packs the cookie. A value that exceeds its field is a caller's bug and is truncated.
    #[must_use]
    pub const fn encode(self) -> u64 {
        let Signature { size, count, pointer, extra, result, zero_frees } = self.signature;
        let reading = match self.inside {
            None => {
                encode_arg(size) << SIZE_SHIFT
                    | encode_arg(count) << COUNT_SHIFT
                    | encode_arg(pointer) << POINTER_SHIFT
                    | encode_arg(extra) << EXTRA_SHIFT
                    | (matches!(result, ResultIn::Pointee) as u64) << POINTEE_SHIFT
                    | (zero_frees as u64) << ZERO_FREES_SHIFT
            }
            Some(Inside { size, frame_pointer_words, distance }) => {
                (size as u64 & REGISTER_MASK) << SIZE_REGISTER_SHIFT
                    | ((frame_pointer_words & Inside::MAX_FRAME_POINTER_WORDS) as u64) << FRAME_POINTER_SHIFT
                    | 1 << INSIDE_SHIFT
                    | (distance as i64).cast_unsigned() << DISTANCE_SHIFT
            }
        };
        self.process.0 as u64 | reading | (self.cfa_words as u64 & CFA_MASK) << CFA_SHIFT
    }

    /// Unpacks a cookie from [`Self::encode`].
    #[inline(always)]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "each field is masked to its width")]
    pub const fn decode(bits: u64) -> Self {
        let is_inside = bits >> INSIDE_SHIFT & 1 == 1;
        let call = if is_inside { NO_ARGUMENTS } else { bits };
        let inside = Inside {
            size: (bits >> SIZE_REGISTER_SHIFT & REGISTER_MASK) as u8,
            frame_pointer_words: (bits >> FRAME_POINTER_SHIFT) as u8 & Inside::MAX_FRAME_POINTER_WORDS,
            distance: (bits.cast_signed() >> DISTANCE_SHIFT) as i32,
        };
        Self {
            process: ProcessSlot(bits as u16),
            signature: Signature {
                size: decode_arg(call >> SIZE_SHIFT),
                count: decode_arg(call >> COUNT_SHIFT),
                pointer: decode_arg(call >> POINTER_SHIFT),
                extra: decode_arg(call >> EXTRA_SHIFT),
                result: if call >> POINTEE_SHIFT & 1 == 1 { ResultIn::Pointee } else { ResultIn::Return },
                zero_frees: call >> ZERO_FREES_SHIFT & 1 == 1,
            },
            cfa_words: (bits >> CFA_SHIFT & CFA_MASK) as u16,
            inside: if is_inside { Some(inside) } else { None },
        }
    }
}

const fn encode_arg(arg: Option<Arg>) -> u64 {
    match arg {
        Some(arg) => arg.0 as u64,
        None => NO_ARG,
    }
}

#[inline(always)]
const fn decode_arg(bits: u64) -> Option<Arg> {
    Arg::new((bits & ARG_MASK) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_arg() -> impl Strategy<Value = Option<Arg>> {
        (0..=Arg::COUNT).prop_map(Arg::new)
    }

    proptest! {
        #[test]
        fn decoding_returns_what_was_encoded(
            slot: u16, size in any_arg(), count in any_arg(), pointer in any_arg(),
            extra in any_arg(),
            pointee: bool, zero_frees: bool, cfa_words in 0..=Cookie::MAX_CFA_WORDS,
        ) {
            let result = if pointee { ResultIn::Pointee } else { ResultIn::Return };
            let signature = Signature { size, count, pointer, extra, result, zero_frees };
            let cookie = Cookie { process: ProcessSlot(slot), signature, cfa_words, inside: None };
            prop_assert_eq!(Cookie::decode(cookie.encode()), cookie);
        }

        #[test]
        fn decoding_returns_what_was_encoded_of_a_site_inside_of_a_function(
            slot: u16, size in 0..16u8, cfa_words in 0..=Cookie::MAX_CFA_WORDS,
            frame_pointer_words in 0..=Inside::MAX_FRAME_POINTER_WORDS,
            distance in -Inside::MAX_DISTANCE..=Inside::MAX_DISTANCE,
        ) {
            let inside = Some(Inside { size, frame_pointer_words, distance });
            let signature = Signature {
                size: None, count: None, pointer: None, extra: None, result: ResultIn::Return, zero_frees: false,
            };
            let cookie = Cookie { process: ProcessSlot(slot), signature, cfa_words, inside };
            prop_assert_eq!(Cookie::decode(cookie.encode()), cookie);
        }
    }
}
