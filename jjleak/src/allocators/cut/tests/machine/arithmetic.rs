//! Results of arithmetic, and the flags that describe them.

use iced_x86::ConditionCode;

use super::{Flags, Machine};

impl Machine<'_> {
    pub(super) fn add(&mut self, one: u64, other: u64, bytes: u32) -> u64 {
        let sum = u128::from(low(one, bytes)) + u128::from(low(other, bytes));
        let result = self.logic(sum as u64, bytes);
        self.flags.carry = sum >> (8 * bytes) != 0;
        self.flags.overflow = sign(!(one ^ other) & (one ^ result), bytes);
        result
    }

    pub(super) fn subtract(&mut self, one: u64, other: u64, bytes: u32) -> u64 {
        let result = self.logic(one.wrapping_sub(other), bytes);
        self.flags.carry = low(one, bytes) < low(other, bytes);
        self.flags.overflow = sign((one ^ other) & (one ^ result), bytes);
        result
    }

    pub(super) fn logic(&mut self, result: u64, bytes: u32) -> u64 {
        self.flags = Flags { zero: low(result, bytes) == 0, sign: sign(result, bytes), ..Flags::default() };
        low(result, bytes)
    }

    pub(super) fn any_flags(&mut self) {
        let [zero, sign, carry, overflow] = std::array::from_fn(|_| self.random.below(2) == 0);
        self.flags = Flags { zero, sign, carry, overflow };
    }

    pub(super) fn holds(&mut self, condition: ConditionCode) -> bool {
        let Flags { zero, sign, carry, overflow } = self.flags;
        match condition {
            ConditionCode::o => overflow,
            ConditionCode::no => !overflow,
            ConditionCode::b => carry,
            ConditionCode::ae => !carry,
            ConditionCode::e => zero,
            ConditionCode::ne => !zero,
            ConditionCode::be => carry || zero,
            ConditionCode::a => !(carry || zero),
            ConditionCode::s => sign,
            ConditionCode::ns => !sign,
            ConditionCode::l => sign != overflow,
            ConditionCode::ge => sign == overflow,
            ConditionCode::le => zero || sign != overflow,
            ConditionCode::g => !zero && sign == overflow,
            // The parity flag.
            _ => self.random.below(2) == 0,
        }
    }
}

/// The lowest bytes of a word.
pub(super) fn low(value: u64, bytes: u32) -> u64 {
    if bytes >= 8 { value } else { value & ((1 << (8 * bytes)) - 1) }
}

pub(super) fn sign(value: u64, bytes: u32) -> bool {
    value >> (8 * bytes - 1) & 1 == 1
}

pub(super) fn extended(value: u64, bytes: u32) -> u64 {
    let unused = 64 - 8 * bytes;
    ((value << unused).cast_signed() >> unused).cast_unsigned()
}
