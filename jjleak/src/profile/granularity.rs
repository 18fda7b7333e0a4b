//! Granularity of frames: function, file, line or address.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Profile, SharedFrame};

/// Granularity of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Granularity {
    /// Functions.
    Functions,
    /// Functions and their source lines.
    Lines,
    /// Source files.
    Files,
    /// Addresses.
    Addresses,
}

impl Granularity {
    /// Renames the frames of a profile, so that those of one function, file, line or address have one name.
    #[must_use]
    pub fn apply(self, mut profile: Profile) -> Profile {
        // Stacks share their frames, and keep sharing them.
        let mut named: HashMap<SharedFrame, SharedFrame> = HashMap::new();
        for stack in &mut profile.stacks {
            let frames = stack.frames.iter().map(|frame| {
                let new = named.entry(frame.clone()).or_insert_with(|| self.named(frame));
                new.clone()
            });
            stack.frames = frames.collect();
        }
        for verdict in &mut profile.verdicts {
            verdict.frames = verdict.frames.iter().map(|frame| self.named(frame)).collect();
        }
        profile
    }

    fn named(self, frame: &SharedFrame) -> SharedFrame {
        let mut new = (**frame).clone();
        match self {
            Self::Functions => (new.file, new.line) = (String::new(), 0),
            Self::Lines if new.line > 0 => new.symbol = format!("{} {}:{}", new.symbol, new.file, new.line),
            Self::Files if !new.file.is_empty() => new.symbol = std::mem::take(&mut new.file),
            Self::Addresses => {
                new.symbol.insert_str(0, &format!("{:#x} ", new.address));
                new.symbol.truncate(new.symbol.trim_end().len());
            }
            Self::Lines | Self::Files => {}
        }
        if self == Self::Files {
            (new.file, new.line) = (String::new(), 0);
        }
        Arc::new(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::sample;

    /// Index of a stack and a frame with a source line in the sample.
    fn place() -> (usize, usize) {
        let profile = sample::profile();
        let stacks = profile.stacks.iter().enumerate();
        let lines = stacks.flat_map(|(index, stack)| {
            stack.frames.iter().enumerate().map(move |(frame, of)| ((index, frame), of.line))
        });
        { lines }.find(|(_, line)| *line > 0).unwrap().0
    }

    /// Name and line of this frame.
    fn named(by: Granularity) -> (String, u32) {
        let profile = by.apply(sample::profile());
        let frame = &profile.stacks[place().0].frames[place().1];
        (frame.symbol.clone(), frame.line)
    }

    #[test]
    fn frames_are_named_after_what_they_are_distinguished_by() {
        let frame = sample::profile().stacks[place().0].frames[place().1].clone();
        assert_eq!(named(Granularity::Functions), (frame.symbol.clone(), 0));
        let line = format!("{} {}:{}", frame.symbol, frame.file, frame.line);
        assert_eq!(named(Granularity::Lines), (line, frame.line));
        assert_eq!(named(Granularity::Files), (frame.file.clone(), 0));
        let address = format!("{:#x} {}", frame.address, frame.symbol);
        assert_eq!(named(Granularity::Addresses), (address, frame.line));
    }

    #[test]
    fn stacks_keep_sharing_frames() {
        let mut profile = sample::profile();
        profile.stacks = vec![profile.stacks[0].clone(); 2];
        let profile = Granularity::Files.apply(profile);
        assert!(Arc::ptr_eq(&profile.stacks[0].frames[1], &profile.stacks[1].frames[1]));
    }
}
