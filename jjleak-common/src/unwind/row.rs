//! Unwind rules in 64 bits.

/// Rule for a frame, valid from its address up to the next row's.
///
/// | bits | field |
/// |---|---|
/// | 0..32 | address, relative to the start of the module's text |
/// | 32..36 | [`RowKind`] |
/// | 36..50 | offset of the CFA in words, unsigned; for [`RowKind::Plt`] the byte threshold |
/// | 50..52 | [`SavedFp`] |
/// | 52..59 | offset of the saved frame pointer in words, signed; for [`RowKind::Deref`] that of the pointer to the CFA |
/// | 59..64 | distance of the saved base register (`rbx`) below the CFA in words, 0 if unknown; for [`RowKind::FarSp`] high bits of the CFA's offset |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Row(pub u64);

/// Rule for the canonical frame address (CFA): the stack pointer before the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RowKind {
    /// Nothing is known of the code.
    None = 0,
    /// Stack pointer + offset.
    Sp = 1,
    /// Frame pointer + offset.
    Fp = 2,
    /// An entry of the procedure linkage table: stack pointer + 8, or + 16 from the threshold on, which counts bytes
    /// from the entry's 16-byte boundary.
    Plt = 3,
    /// The frame that the kernel pushes for a signal handler; it contains all registers.
    Signal = 4,
    /// The outermost frame.
    End = 5,
    /// The word at frame pointer + displacement, plus offset: frames with a realigned stack.
    Deref = 6,
    /// A rule that a row cannot express.
    Unsupported = 7,
    /// Frame pointer + 16, with the caller's frame pointer below it: code that keeps frame pointers.
    FramePointer = 8,
    /// A frame of HotSpot's interpreter, whose layout is relative to the frame pointer.
    Interpreter = 9,
    /// Code that a JVM generates: the JVM's memory describes the code there. The offset of the CFA is the JVM's slot,
    /// that of the saved frame pointer is the number of the heap.
    Generated = 10,
    /// Base register (`rbx`) + offset, as in glibc's trampolines that bind calls. The called frame must have saved
    /// the register.
    Base = 11,
    /// Stack pointer + an offset that is too large for other rows.
    FarSp = 12,
    /// The barrier to which a virtual thread's frames return while their callers are in the Java heap.
    Continuation = 13,
    /// A frame of Go's runtime that runs on another stack than its caller: see [`GoSwitch`].
    Go = 14,
}

/// Rule that leads from a frame of Go's runtime to its caller's stack. It replaces a row's [`SavedFp`].
///
/// A goroutine has a stack of its own; C code runs on the stack of the thread's scheduler (`g0`). The runtime saves
/// the way back in a place that differs between its versions, so it is read from each file's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum GoSwitch {
    /// `runtime.asmcgocall` has switched from a goroutine's stack to the scheduler's. It has saved the goroutine
    /// (`g`) and the depth of its stack.
    ToScheduler = 0,
    /// `runtime.asmcgocall` was on the scheduler's stack already, or `runtime.callCgoMmap` has aligned the stack: the
    /// stack pointer is saved.
    Stay = 1,
    /// `runtime.cgocallback` has switched from the scheduler's stack to a goroutine's. The scheduler has saved the
    /// stack pointer.
    ToGoroutine = 2,
    /// `runtime.systemstack` and `runtime.morestack` have switched from a goroutine's stack to the scheduler's. The
    /// goroutine that the thread was running has saved the stack pointer and the address of the code.
    ToRunning = 3,
}

/// Fields of a [`GoSwitch::ToScheduler`], in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToScheduler {
    /// Distance from the goroutine's stack pointer to the CFA.
    pub cfa: u64,
    /// Offset of the saved goroutine above the stack pointer; the word below holds the depth of its stack.
    pub goroutine_at: u64,
    /// Number of words by which the stack pointer was lowered on the scheduler's stack before it was aligned.
    pub room: u64,
    /// Offset of the thread (`m`) in a goroutine.
    pub thread_in_g: u64,
    /// Offset of the saved stack pointer in a goroutine (`g.sched.sp`).
    pub pointer_in_g: u64,
}

/// Fields of a [`GoSwitch::ToRunning`], in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToRunning {
    /// Distance from the goroutine's saved stack pointer to the CFA; 0 if the goroutine has saved the address of the
    /// code in which it continues, too (`g.sched.pc`, the word after the stack pointer).
    pub cfa: u64,
    /// Distance of the variable with the current goroutine (`g`) below the thread pointer (FS base).
    pub below_thread: u64,
    /// Offset of the thread (`m`) in a goroutine.
    pub thread_in_g: u64,
    /// Offset of the goroutine that the thread runs (`m.curg`) in a thread.
    pub running_in_m: u64,
    /// Offset of the saved stack pointer in a goroutine (`g.sched.sp`).
    pub pointer_in_g: u64,
}

/// Location of the caller's frame pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SavedFp {
    /// In the register itself.
    Register = 0,
    /// At CFA + offset.
    AtCfa = 1,
    /// At the address in the frame pointer.
    AtFp = 2,
}

const KIND_SHIFT: u64 = 32;
const KIND_MASK: u64 = 15;
const OFFSET_SHIFT: u64 = 36;
const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;
const SAVED_SHIFT: u64 = 50;
const SAVED_MASK: u64 = 3;
const FP_OFFSET_SHIFT: u64 = 52;
const FP_OFFSET_BITS: u64 = 7;
const BASE_SHIFT: u64 = FP_OFFSET_SHIFT + FP_OFFSET_BITS;
const BASE_BITS: u64 = u64::BITS as u64 - BASE_SHIFT;
const OFFSET_BITS: u64 = SAVED_SHIFT - OFFSET_SHIFT;
/// The offset of a [`RowKind::Go`] holds the CFA's offset from the stack pointer on the caller's stack, and two more
/// fields.
const GO_CFA_BITS: u64 = 4;
const GO_FIELD_BITS: u64 = 5;
const GO_CFA_MASK: u64 = (1 << GO_CFA_BITS) - 1;
const GO_FIELD_MASK: u64 = (1 << GO_FIELD_BITS) - 1;
const _: () = assert!(GO_CFA_BITS + 2 * GO_FIELD_BITS == OFFSET_BITS);

impl Row {
    /// Maximum CFA offset, in words: frames of 128 KiB.
    pub const MAX_OFFSET_WORDS: u64 = OFFSET_MASK;
    /// Maximum distance of the saved frame pointer from the CFA in either direction, in words.
    pub const MAX_FP_OFFSET_WORDS: i64 = (1 << (FP_OFFSET_BITS - 1)) - 1;
    /// Maximum CFA offset of a [`RowKind::FarSp`], in words: frames of 4 MiB.
    pub const MAX_FAR_OFFSET_WORDS: u64 = (1 << (OFFSET_BITS + BASE_BITS)) - 1;
    /// Maximum distance of the saved base register below the CFA, in words.
    pub const MAX_BASE_WORDS: u64 = (1 << BASE_BITS) - 1;

    /// Packs a row; `None` if an offset does not fit.
    #[must_use]
    pub const fn new(
        address: u32,
        kind: RowKind,
        offset: u64,
        saved: SavedFp,
        fp_offset: i64,
    ) -> Option<Self> {
        if offset > Self::MAX_OFFSET_WORDS
            || fp_offset > Self::MAX_FP_OFFSET_WORDS
            || fp_offset < -Self::MAX_FP_OFFSET_WORDS
        {
            return None;
        }
        Some(Self(
            address as u64
                | (kind as u64) << KIND_SHIFT
                | offset << OFFSET_SHIFT
                | (saved as u64) << SAVED_SHIFT
                | (fp_offset.cast_unsigned() << FP_OFFSET_SHIFT) & ((1 << BASE_SHIFT) - 1),
        ))
    }

    /// Packs a row of [`RowKind::FarSp`]; `None` if an offset does not fit.
    #[must_use]
    pub const fn far(address: u32, offset: u64, saved: SavedFp, fp_offset: i64) -> Option<Self> {
        if offset > Self::MAX_FAR_OFFSET_WORDS {
            return None;
        }
        match Self::new(address, RowKind::FarSp, offset & OFFSET_MASK, saved, fp_offset) {
            Some(row) => Some(Self(row.0 | (offset >> OFFSET_BITS) << BASE_SHIFT)),
            None => None,
        }
    }

    /// The same row for a frame that has saved the base register `words` words below its CFA. If the row has no room
    /// for that, the row is unchanged and the register's place unknown.
    #[must_use]
    pub const fn with_base_saved(self, words: u64) -> Self {
        if words > Self::MAX_BASE_WORDS || self.kind() == RowKind::FarSp as u64 {
            return self;
        }
        Self(self.0 & ((1 << BASE_SHIFT) - 1) | words << BASE_SHIFT)
    }

    /// The same rule at another address.
    #[must_use]
    pub const fn at(self, address: u32) -> Self {
        Self((self.rule() as u64) << KIND_SHIFT | address as u64)
    }

    /// A row without offsets.
    #[must_use]
    pub const fn plain(address: u32, kind: RowKind) -> Self {
        Self(address as u64 | (kind as u64) << KIND_SHIFT)
    }

    /// Packs a row of [`GoSwitch::ToScheduler`]; `None` if a field does not fit.
    #[must_use]
    pub const fn go_to_scheduler(address: u32, fields: &ToScheduler) -> Option<Self> {
        let ToScheduler { cfa, goroutine_at, room, thread_in_g, pointer_in_g } = *fields;
        if cfa > GO_CFA_MASK
            || thread_in_g > GO_FIELD_MASK
            || pointer_in_g > GO_FIELD_MASK
            || goroutine_at > Self::MAX_FP_OFFSET_WORDS.cast_unsigned()
            || room > Self::MAX_BASE_WORDS
        {
            return None;
        }
        let offset = cfa | thread_in_g << GO_CFA_BITS | pointer_in_g << (GO_CFA_BITS + GO_FIELD_BITS);
        let row = Self::go(address, GoSwitch::ToScheduler).0 | offset << OFFSET_SHIFT | room << BASE_SHIFT;
        Some(Self(row | goroutine_at << FP_OFFSET_SHIFT))
    }

    /// Packs a row of [`GoSwitch::Stay`] with the stack pointer saved `pointer_at` words above the current one;
    /// `None` if an offset does not fit.
    #[must_use]
    pub const fn go_stay(address: u32, cfa: u64, pointer_at: u64) -> Option<Self> {
        if cfa > GO_CFA_MASK || pointer_at > Self::MAX_FP_OFFSET_WORDS.cast_unsigned() {
            return None;
        }
        let row = Self::go(address, GoSwitch::Stay).0;
        Some(Self(row | cfa << OFFSET_SHIFT | pointer_at << FP_OFFSET_SHIFT))
    }

    /// Packs a row of [`GoSwitch::ToGoroutine`]; `None` if the offset does not fit.
    #[must_use]
    pub const fn go_to_goroutine(address: u32, cfa: u64) -> Option<Self> {
        if cfa > GO_CFA_MASK {
            return None;
        }
        Some(Self(Self::go(address, GoSwitch::ToGoroutine).0 | cfa << OFFSET_SHIFT))
    }

    /// Packs a row of [`GoSwitch::ToRunning`]; `None` if a field does not fit.
    #[must_use]
    pub const fn go_to_running(address: u32, fields: &ToRunning) -> Option<Self> {
        let ToRunning { cfa, below_thread, thread_in_g, running_in_m, pointer_in_g } = *fields;
        let packed =
            ToScheduler { cfa, goroutine_at: running_in_m, room: below_thread, thread_in_g, pointer_in_g };
        match Self::go_to_scheduler(address, &packed) {
            Some(row) => Some(Self(row.0 | (GoSwitch::ToRunning as u64) << SAVED_SHIFT)),
            None => None,
        }
    }

    const fn go(address: u32, switch: GoSwitch) -> Self {
        Self(Self::plain(address, RowKind::Go).0 | (switch as u64) << SAVED_SHIFT)
    }

    /// For a [`RowKind::Go`]: the CFA's offset from the caller's stack pointer, in bytes.
    #[inline(always)]
    #[must_use]
    pub const fn go_cfa_bytes(self) -> u64 {
        (self.0 >> OFFSET_SHIFT & GO_CFA_MASK) << 3
    }

    /// See [`ToScheduler::thread_in_g`]; in bytes.
    #[inline(always)]
    #[must_use]
    pub const fn go_thread_bytes(self) -> u64 {
        (self.0 >> (OFFSET_SHIFT + GO_CFA_BITS) & GO_FIELD_MASK) << 3
    }

    /// See [`ToScheduler::pointer_in_g`]; in bytes.
    #[inline(always)]
    #[must_use]
    pub const fn go_pointer_bytes(self) -> u64 {
        (self.0 >> (OFFSET_SHIFT + GO_CFA_BITS + GO_FIELD_BITS) & GO_FIELD_MASK) << 3
    }

    /// See [`ToScheduler::room`] and [`ToRunning::below_thread`]; in bytes.
    #[inline(always)]
    #[must_use]
    pub const fn go_room_bytes(self) -> u64 {
        self.0 >> BASE_SHIFT << 3
    }

    /// First address of the rule, relative to the start of the text.
    #[inline(always)]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the address is in the low 32 bits")]
    pub const fn address(self) -> u32 {
        self.0 as u32
    }

    /// The rule without the address: equal for rows that can be merged.
    #[inline(always)]
    #[must_use]
    pub const fn rule(self) -> u32 {
        (self.0 >> KIND_SHIFT) as u32
    }

    /// Number of the [`RowKind`].
    #[inline(always)]
    #[must_use]
    pub const fn kind(self) -> u64 {
        self.0 >> KIND_SHIFT & KIND_MASK
    }

    /// CFA offset in bytes; for [`RowKind::Plt`] 8 times the threshold.
    #[inline(always)]
    #[must_use]
    pub const fn offset_bytes(self) -> u64 {
        (self.0 >> OFFSET_SHIFT & OFFSET_MASK) << 3
    }

    /// Number of the [`SavedFp`].
    #[inline(always)]
    #[must_use]
    pub const fn saved(self) -> u64 {
        self.0 >> SAVED_SHIFT & SAVED_MASK
    }

    /// Offset of the saved frame pointer in bytes, as a wrapping addend.
    #[inline(always)]
    #[must_use]
    pub const fn fp_offset_bytes(self) -> u64 {
        (((self.0 << BASE_BITS).cast_signed() >> (FP_OFFSET_SHIFT + BASE_BITS)) << 3).cast_unsigned()
    }

    /// Distance of the saved base register below the CFA in bytes; 0 if unknown, and for [`RowKind::FarSp`].
    #[inline(always)]
    #[must_use]
    pub const fn base_saved_bytes(self) -> u64 {
        if self.kind() == RowKind::FarSp as u64 { 0 } else { self.0 >> BASE_SHIFT << 3 }
    }

    /// CFA offset of a [`RowKind::FarSp`] in bytes.
    #[inline(always)]
    #[must_use]
    pub const fn far_offset_bytes(self) -> u64 {
        self.offset_bytes() | self.0 >> BASE_SHIFT << (OFFSET_BITS + 3)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_row_gives_back_what_was_packed(
            address: u32, offset in 0..=Row::MAX_OFFSET_WORDS,
            fp_offset in -Row::MAX_FP_OFFSET_WORDS..=Row::MAX_FP_OFFSET_WORDS,
        ) {
            let row = Row::new(address, RowKind::Deref, offset, SavedFp::AtFp, fp_offset).unwrap();
            prop_assert_eq!(row.address(), address);
            prop_assert_eq!(row.kind(), RowKind::Deref as u64);
            prop_assert_eq!(row.offset_bytes(), offset * 8);
            prop_assert_eq!(row.saved(), SavedFp::AtFp as u64);
            prop_assert_eq!(row.fp_offset_bytes(), (fp_offset * 8).cast_unsigned());
        }
    }

    proptest! {
        #[test]
        fn a_row_encodes_where_the_base_register_is_saved(
            address: u32, offset in 0..=Row::MAX_OFFSET_WORDS, words in 0..=Row::MAX_BASE_WORDS,
            fp_offset in -Row::MAX_FP_OFFSET_WORDS..=Row::MAX_FP_OFFSET_WORDS,
        ) {
            let plain = Row::new(address, RowKind::Sp, offset, SavedFp::AtCfa, fp_offset).unwrap();
            prop_assert_eq!(plain.base_saved_bytes(), 0);
            let row = plain.with_base_saved(words);
            prop_assert_eq!(row.base_saved_bytes(), words * 8);
            prop_assert_eq!(row.with_base_saved(0), plain);
            prop_assert_eq!(row.fp_offset_bytes(), (fp_offset * 8).cast_unsigned());
            prop_assert_eq!(plain.with_base_saved(Row::MAX_BASE_WORDS + 1), plain);
        }

        #[test]
        fn a_far_row_gives_back_what_was_packed(
            address: u32, offset in 0..=Row::MAX_FAR_OFFSET_WORDS,
            fp_offset in -Row::MAX_FP_OFFSET_WORDS..=Row::MAX_FP_OFFSET_WORDS,
        ) {
            let row = Row::far(address, offset, SavedFp::AtCfa, fp_offset).unwrap();
            prop_assert_eq!(row.far_offset_bytes(), offset * 8);
            prop_assert_eq!((row.kind(), row.saved()), (RowKind::FarSp as u64, SavedFp::AtCfa as u64));
            prop_assert_eq!(row.fp_offset_bytes(), (fp_offset * 8).cast_unsigned());
            prop_assert_eq!((row.base_saved_bytes(), row.with_base_saved(3)), (0, row));
        }
    }

    #[test]
    fn a_row_of_gos_runtime_gives_back_what_was_packed() {
        let fields = ToScheduler { cfa: 2, goroutine_at: 6, room: 8, thread_in_g: 6, pointer_in_g: 7 };
        let row = Row::go_to_scheduler(0x1234, &fields).unwrap();
        assert_eq!((row.address(), row.kind(), row.saved()), (0x1234, RowKind::Go as u64, 0));
        assert_eq!((row.go_cfa_bytes(), row.fp_offset_bytes(), row.go_room_bytes()), (16, 48, 64));
        assert_eq!((row.go_thread_bytes(), row.go_pointer_bytes()), (48, 56));
        let stay = Row::go_stay(1, 1, 5).unwrap();
        assert_eq!((stay.saved(), stay.go_cfa_bytes(), stay.fp_offset_bytes()), (1, 8, 40));
        let back = Row::go_to_goroutine(1, 5).unwrap();
        assert_eq!((back.saved(), back.go_cfa_bytes()), (2, 40));
        assert_eq!(Row::go_to_scheduler(0, &ToScheduler { thread_in_g: 32, ..fields }), None);
        let fields = ToRunning { cfa: 0, below_thread: 1, thread_in_g: 6, running_in_m: 24, pointer_in_g: 7 };
        let running = Row::go_to_running(2, &fields).unwrap();
        assert_eq!((running.kind(), running.saved(), running.go_cfa_bytes()), (RowKind::Go as u64, 3, 0));
        assert_eq!((running.go_room_bytes(), running.fp_offset_bytes()), (8, 192));
        assert_eq!((running.go_thread_bytes(), running.go_pointer_bytes()), (48, 56));
        assert_eq!(Row::go_to_running(0, &ToRunning { below_thread: 32, ..fields }), None);
        assert_eq!((Row::go_stay(0, 16, 5), Row::go_to_goroutine(0, 16)), (None, None));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let new = |offset, fp_offset| Row::new(0, RowKind::Sp, offset, SavedFp::AtCfa, fp_offset);
        assert_eq!(new(Row::MAX_OFFSET_WORDS + 1, 0), None);
        assert_eq!(new(0, Row::MAX_FP_OFFSET_WORDS + 1), None);
        assert_eq!(new(0, -Row::MAX_FP_OFFSET_WORDS - 1), None);
        assert_eq!(Row::far(0, Row::MAX_FAR_OFFSET_WORDS + 1, SavedFp::Register, 0), None);
    }
}
