//! Lines on the growth of resident memory: what grows, its cause, and the next step.

use super::Profile;

/// Beginning of the line with the cause: `cause: Java heap (96 % of the growth): used after the last collection: ...`.
pub const CAUSE_LINE: &str = "cause: ";

/// Beginning of the line with the next step.
pub const TO_DO_LINE: &str = "to do: ";

impl Profile {
    /// The cause of growth beside what is allocated, with its share of the growth: `Java heap (96 % of the growth)`.
    #[must_use]
    pub fn cause_of_growth(&self) -> Option<&str> {
        self.growth.iter().find_map(|line| line.strip_prefix(CAUSE_LINE)?.split(": ").next())
    }

    /// The next step for that.
    #[must_use]
    pub fn step_for_growth(&self) -> Option<&str> {
        self.growth.iter().find_map(|line| line.strip_prefix(TO_DO_LINE))
    }
}
