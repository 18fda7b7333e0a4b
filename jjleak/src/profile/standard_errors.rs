//! Standard errors of the memory of a stack.

use super::Totals;

/// Standard errors of bytes and objects, unless there are none. They are kept in 8 bytes, and precise to seven digits.
#[derive(Debug, Clone, Copy)]
pub struct StandardErrors {
    /// Not a number for figures that are exact.
    bytes: f32,
    objects: f32,
}

impl StandardErrors {
    /// The errors; `None` if figures are exact.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "they are not negative, and a cast is bounded"
    )]
    pub fn totals(self) -> Option<Totals> {
        let Self { bytes, objects } = self;
        (!bytes.is_nan()).then_some(Totals { bytes: bytes as u64, objects: objects as u64 })
    }

    /// Errors of the sum of two independent figures.
    #[must_use]
    pub fn of_sum(self, other: Self) -> Self {
        match (self.totals(), other.totals()) {
            (Some(_), Some(_)) => {
                let Self { bytes, objects } = other;
                Self { bytes: self.bytes.hypot(bytes).round(), objects: self.objects.hypot(objects).round() }
            }
            (Some(_), None) => self,
            (None, _) => other,
        }
    }
}

impl From<Totals> for StandardErrors {
    #[expect(clippy::cast_precision_loss, reason = "an error has no use for more digits")]
    fn from(Totals { bytes, objects }: Totals) -> Self {
        Self { bytes: bytes as f32, objects: objects as f32 }
    }
}

impl From<Option<Totals>> for StandardErrors {
    fn from(totals: Option<Totals>) -> Self {
        totals.map_or_else(Self::default, Into::into)
    }
}

impl Default for StandardErrors {
    fn default() -> Self {
        Self { bytes: f32::NAN, objects: f32::NAN }
    }
}

impl PartialEq for StandardErrors {
    fn eq(&self, other: &Self) -> bool {
        self.totals() == other.totals()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_kept_or_absent_and_add_up_as_squares() {
        let of = |bytes, objects| StandardErrors::from(Totals { bytes, objects });
        let exact = StandardErrors::default();
        assert_eq!((exact.totals(), exact), (None, None.into()));
        assert_eq!(of(1234, 0).totals(), Some(Totals { bytes: 1234, objects: 0 }));
        assert_eq!(of(u64::MAX, 1).totals().unwrap().bytes, u64::MAX);
        assert_eq!(of(3, 5).of_sum(of(4, 12)), of(5, 13));
        assert_eq!(
            (of(3, 5).of_sum(exact), exact.of_sum(of(3, 5)), exact.of_sum(exact)),
            (of(3, 5), of(3, 5), exact)
        );
    }

    #[test]
    fn what_was_kept_is_kept_the_same_again() {
        for bytes in [16_777_217, 123_456_789_012, u64::MAX / 3] {
            let kept = StandardErrors::from(Totals { bytes, objects: 1 });
            assert_eq!(StandardErrors::from(kept.totals()), kept);
        }
    }
}
