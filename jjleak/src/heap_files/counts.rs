//! Counts of a line, and what they say about the program.

use std::iter;
use std::ops::AddAssign;

/// Objects and bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Estimate {
    /// Number of objects.
    pub objects: f64,
    /// Bytes.
    pub bytes: f64,
    /// Variance of the number of objects; the objects of a stack count as of equal size.
    pub objects_variance: f64,
    /// Variance of the bytes.
    pub bytes_variance: f64,
}

impl AddAssign for Estimate {
    /// Adds an estimate that is independent of this one.
    fn add_assign(&mut self, other: Self) {
        self.objects += other.objects;
        self.bytes += other.bytes;
        self.objects_variance += other.objects_variance;
        self.bytes_variance += other.bytes_variance;
    }
}

/// Relation of the figures of a file to those of the program.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum Scaling {
    /// All allocations are in the file.
    #[default]
    Exact,
    /// An allocation of `size` bytes is in the file with the probability 1 - exp(-size / bytes).
    Exponential {
        /// Mean number of bytes between two samples.
        bytes: f64,
    },
    /// An allocation of `size` bytes is in the file with the probability size / bytes, at most 1: older versions of tcmalloc.
    Linear {
        /// Number of bytes.
        bytes: f64,
    },
}

impl Scaling {
    /// The estimate for sampled objects of a stack, by their mean size.
    pub(super) fn estimate(self, objects: u64, bytes: u64) -> Estimate {
        let (objects, bytes) = (float(objects), float(bytes));
        if objects == 0. {
            // Nothing can be said about their size.
            return Estimate { bytes, ..Estimate::default() };
        }
        let size = bytes / objects;
        let probability = match self {
            Self::Exact => 1.,
            Self::Exponential { bytes } => -(-size / bytes).exp_m1(),
            Self::Linear { bytes } => (size / bytes).min(1.),
        };
        if probability <= 0. {
            // Objects of no bytes: each stands for itself.
            return Estimate { objects, bytes, ..Estimate::default() };
        }
        let objects_variance = objects * (1. - probability) / probability.powi(2);
        Estimate {
            objects: objects / probability,
            bytes: bytes / probability,
            objects_variance,
            bytes_variance: objects_variance * size.powi(2),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "estimates have no use for more than 53 bits")]
const fn float(number: u64) -> f64 {
    number as f64
}

/// Counts like `12: 6496 [20: 8192]`: objects and bytes in use, and those allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) live: (u64, u64),
    pub(super) allocated: (u64, u64),
}

impl Counts {
    /// Parses the beginning of a text; returns the rest, too.
    pub(super) fn parse(text: &str) -> Option<(Self, &str)> {
        let (live, rest) = text.split_once('[')?;
        let (allocated, rest) = rest.split_once(']')?;
        Some((Self { live: pair(live)?, allocated: pair(allocated)? }, rest))
    }

    /// Estimates of what is in use, and of what was allocated, if that is recorded.
    pub(super) fn estimates(self, scaling: Scaling) -> (Estimate, Option<Estimate>) {
        let estimate = |(objects, bytes)| scaling.estimate(objects, bytes);
        (estimate(self.live), (self.allocated != (0, 0)).then(|| estimate(self.allocated)))
    }
}

/// Counts of stacks. Most files have none of what was allocated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct CountsOfStacks {
    live: Vec<(u64, u64)>,
    /// Those of the first stacks. All stacks after them have zeros.
    allocated: Vec<(u64, u64)>,
}

impl CountsOfStacks {
    pub(super) const fn len(&self) -> usize {
        self.live.len()
    }

    pub(super) fn push(&mut self, Counts { live, allocated }: Counts) {
        if allocated != (0, 0) {
            self.allocated.resize(self.live.len(), (0, 0));
            self.allocated.push(allocated);
        }
        self.live.push(live);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Counts> {
        let allocated = self.allocated.iter().copied().chain(iter::repeat((0, 0)));
        self.live.iter().zip(allocated).map(|(live, allocated)| Counts { live: *live, allocated })
    }

    pub(super) fn shrink_to_fit(&mut self) {
        self.live.shrink_to_fit();
        self.allocated.shrink_to_fit();
    }
}

fn pair(text: &str) -> Option<(u64, u64)> {
    let (objects, bytes) = text.split_once(':')?;
    Some((objects.trim().parse().ok()?, bytes.trim().parse().ok()?))
}
