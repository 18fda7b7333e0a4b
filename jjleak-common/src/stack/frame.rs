//! Frames of stacks, each in one word.

/// A frame of a stack, in one word.
///
/// | bits | field |
/// |---|---|
/// | 0..48 | address |
/// | 48..63 | layer: the file, of those that have been mapped at the address; see [`crate::unwind::Mapping::layer`] |
/// | 63 | 1 if a frame pointer led to it |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct StackFrame(pub u64);

impl StackFrame {
    /// Number of bits of a user-space address.
    pub const ADDRESS_BITS: u64 = 48;
    const LAYER_MASK: u64 = 0x7fff;
    const BY_FRAME_POINTER: u64 = 1 << 63;

    /// A frame found by a proven rule.
    #[inline(always)]
    #[must_use]
    pub const fn new(address: u64, layer: u16) -> Self {
        let address = address & ((1 << Self::ADDRESS_BITS) - 1);
        Self(address | (layer as u64 & Self::LAYER_MASK) << Self::ADDRESS_BITS)
    }

    /// The same frame, found by a frame pointer if `by` is 1, by a proven rule if it is 0.
    #[inline(always)]
    #[must_use]
    pub const fn found_by_frame_pointer(self, by: u64) -> Self {
        Self(self.0 | by << 63)
    }

    /// The same frame in another layer.
    #[must_use]
    pub const fn in_layer(self, layer: u16) -> Self {
        let cleared = self.0 & !(Self::LAYER_MASK << Self::ADDRESS_BITS);
        Self(cleared | (layer as u64 & Self::LAYER_MASK) << Self::ADDRESS_BITS)
    }

    /// The same frame without the mark of a frame pointer.
    #[must_use]
    pub const fn however_found(self) -> Self {
        Self(self.0 & !Self::BY_FRAME_POINTER)
    }

    /// Address of the frame.
    #[must_use]
    pub const fn address(self) -> u64 {
        self.0 & ((1 << Self::ADDRESS_BITS) - 1)
    }

    /// Layer of the frame's file among those that have been mapped at the address.
    #[must_use]
    pub const fn layer(self) -> u16 {
        (self.0 >> Self::ADDRESS_BITS & Self::LAYER_MASK) as u16
    }

    /// Returns true if a frame pointer led to the frame. That does not prove that it called the frame before.
    #[must_use]
    pub const fn is_by_frame_pointer(self) -> bool {
        self.0 & Self::BY_FRAME_POINTER != 0
    }
}

/// A frame of HotSpot's interpreter. It replaces the return address, which would be the same for all methods: they
/// run in the same code. As a [`StackFrame`]:
///
/// | bits | field |
/// |---|---|
/// | 0..44 | address of the method / 8 |
/// | 44..60 | lowest bits of the bytecode's address |
/// | 60..63 | [`layer::INTERPRETED`](crate::unwind::layer::INTERPRETED), with which no file's layer begins |
/// | 63 | 1 if a frame pointer led to it |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InterpretedFrame {
    /// Address of the `Method`: a multiple of 8, below 2^47.
    pub method: u64,
    /// Lowest bits of the address of the current bytecode. A method has at most 2^16 bytes of bytecode, so these bits
    /// and the address of its first bytecode give the position in the method.
    pub bytecode_low: u16,
}

impl InterpretedFrame {
    const MARK_SHIFT: u32 = 60;
    const MARK: u64 = (crate::unwind::layer::INTERPRETED >> 12) as u64;
    const METHOD_BITS: u32 = 44;
    const METHOD_MASK: u64 = (1 << Self::METHOD_BITS) - 1;

    /// Returns true if there can be a `Method` at this address.
    #[inline(always)]
    #[must_use]
    pub const fn can_be(method: u64) -> bool {
        method.trailing_zeros() >= 3 && method != 0 && method >> 3 <= Self::METHOD_MASK
    }

    /// Packs the frame into a word.
    #[inline(always)]
    #[must_use]
    pub const fn pack(method: u64, bytecode: u64) -> StackFrame {
        let bytecode = (bytecode & 0xffff) << Self::METHOD_BITS;
        StackFrame(Self::MARK << Self::MARK_SHIFT | bytecode | (method >> 3 & Self::METHOD_MASK))
    }

    /// Unpacks a word; `None` for an address.
    #[must_use]
    pub const fn unpack(frame: StackFrame) -> Option<Self> {
        if frame.0 >> Self::MARK_SHIFT & 7 != Self::MARK {
            return None;
        }
        let bytecode_low = (frame.0 >> Self::METHOD_BITS & 0xffff) as u16;
        Some(Self { method: (frame.0 & Self::METHOD_MASK) << 3, bytecode_low })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unwind::layer;

    #[test]
    fn an_interpreted_frame_is_no_address_and_keeps_its_method_and_the_low_bits_of_its_place() {
        let (method, bytecode) = (0x7fff_ffff_fff8, 0x7f00_1234_abcd);
        assert!(InterpretedFrame::can_be(method));
        assert!(!InterpretedFrame::can_be(method + 4) && !InterpretedFrame::can_be(1 << 47));
        let word = InterpretedFrame::pack(method, bytecode);
        let frame = InterpretedFrame { method, bytecode_low: 0xabcd };
        assert_eq!(InterpretedFrame::unpack(word), Some(frame));
        assert_eq!(InterpretedFrame::unpack(word.found_by_frame_pointer(1)), Some(frame));
        for layer in [0, layer::MAX, layer::NO_FILE, layer::FOUND, layer::UNKNOWN, layer::OF_SITE] {
            assert_eq!(InterpretedFrame::unpack(StackFrame::new(method, layer)), None);
        }
    }

    #[test]
    fn a_frame_gives_back_what_it_was_made_of() {
        let frame = StackFrame::new(0x7fff_1234_5678, 0x7abc);
        assert_eq!((frame.address(), frame.layer()), (0x7fff_1234_5678, 0x7abc));
        assert!(!frame.is_by_frame_pointer() && !frame.found_by_frame_pointer(0).is_by_frame_pointer());
        let found = frame.found_by_frame_pointer(1);
        assert!(found.is_by_frame_pointer());
        assert_eq!((found.address(), found.layer()), (frame.address(), frame.layer()));
    }
}
