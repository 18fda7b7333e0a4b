//! Draws that are as good as random, and the same for the same seed.

/// splitmix64: a stream of independent draws.
#[derive(Debug, Clone)]
pub(crate) struct Draws(pub(crate) u64);

impl Draws {
    /// The next one, of all 64-bit numbers.
    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number from 0 up to 1, each as likely.
    #[expect(clippy::cast_precision_loss, reason = "53 bits are what it has")]
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}
