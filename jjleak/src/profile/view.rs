//! Filters for what a reader wants to see of a profile.

use std::collections::{BTreeSet, HashMap};
use std::str::FromStr;

use regex::Regex;

use super::{Frame, FrameKind, Profile, SharedFrame, StackProfile, Verdict};

/// Which stacks and frames to keep. The default keeps everything.
#[derive(Debug, Clone, Default)]
pub struct StackFilter {
    /// Keep only stacks with a matching frame.
    pub focus: Option<Regex>,
    /// Drop stacks with a matching frame.
    pub ignore: Option<Regex>,
    /// Keep only frames of these kinds, and stacks that have any; empty keeps all.
    pub kinds: Vec<FrameKinds>,
}

/// Groups of frame kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKinds {
    /// Compiled ahead of time.
    Native,
    /// Java methods, inlined or not.
    Java,
    /// The JVM, and the code it generates for itself.
    Jvm,
    /// The kernel.
    Kernel,
    /// Unidentified code.
    Unknown,
}

impl StackFilter {
    /// Returns whether everything is kept.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.focus.is_none() && self.ignore.is_none() && self.kinds.is_empty()
    }

    /// Applies the filter, and returns how much is shown. If nothing is left, the profile makes no claim
    /// about leaks.
    #[must_use]
    pub fn apply(&self, mut profile: Profile) -> (Profile, Shown) {
        let live_bytes = profile.live().bytes;
        let stacks = profile.stacks.len();
        profile.stacks.retain(|stack| self.keeps(stack));
        if !self.kinds.is_empty() {
            let kinds: BTreeSet<_> = self.kinds.iter().flat_map(|kinds| kinds.all()).copied().collect();
            for stack in &mut profile.stacks {
                let is_shown = |frame: &&SharedFrame| {
                    matches!(frame.kind, FrameKind::Thread | FrameKind::Memory | FrameKind::Class)
                        || kinds.contains(&frame.kind)
                };
                stack.frames = stack.frames.iter().filter(is_shown).cloned().collect();
            }
            profile.stacks.retain(|stack| stack.frames.iter().any(|frame| kinds.contains(&frame.kind)));
        }
        let mut narrowed = false;
        if !self.is_everything() {
            let kept: HashMap<_, _> = profile.stacks.iter().map(|stack| (stack.id, stack)).collect();
            profile.verdicts.retain_mut(|verdict| {
                let all = verdict.stacks.len();
                let is_shown = narrow(verdict, &kept);
                narrowed |= is_shown && verdict.stacks.len() < all;
                is_shown
            });
            if profile.stacks.is_empty() {
                profile.unjudge();
            }
        }
        let of = Amount { stacks: profile.stacks.len(), live_bytes: profile.live().bytes };
        (profile, Shown { of, all: Amount { stacks, live_bytes }, narrowed })
    }

    fn keeps(&self, stack: &StackProfile) -> bool {
        let matches = |regex: &Regex| stack.frames.iter().any(|frame| is_in(regex, frame));
        self.focus.as_ref().is_none_or(matches) && !self.ignore.as_ref().is_some_and(matches)
    }
}

/// Restricts a verdict to the kept stacks. Returns whether any are left. Survival and rates remain those of
/// the whole call site.
fn narrow(verdict: &mut Verdict, kept: &HashMap<u64, &StackProfile>) -> bool {
    let all = verdict.stacks.len();
    verdict.stacks.retain(|id| kept.contains_key(id));
    let stacks = || verdict.stacks.iter().map(|id| kept[id]);
    let Some(largest) = stacks().max_by_key(|stack| stack.live.bytes) else { return false };
    if verdict.stacks.len() < all {
        verdict.hidden_stacks += (all - verdict.stacks.len()) as u64;
        verdict.live = stacks().map(|stack| stack.live).sum();
        verdict.allocated = stacks().map(|stack| stack.allocated).sum();
    }
    // If the caller's frame is hidden, the next visible caller is used.
    let place = |caller: &SharedFrame| largest.frames.iter().position(|frame| frame == caller);
    let caller = verdict.frames.iter().skip(verdict.caller).find_map(place);
    verdict.caller = caller.unwrap_or(largest.frames.len().saturating_sub(1));
    verdict.frames = largest.frames.clone();
    true
}

/// Returns whether the frame's function, source file or module matches.
fn is_in(regex: &Regex, frame: &Frame) -> bool {
    [&frame.symbol, &frame.file, &frame.module].iter().any(|text| !text.is_empty() && regex.is_match(text))
}

/// Shown part of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shown {
    /// The shown part.
    pub of: Amount,
    /// The whole.
    pub all: Amount,
    /// Some verdicts are on call sites of which only a part is shown: their rates and shares are of the
    /// whole.
    pub narrowed: bool,
}

/// Stacks and their live bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Amount {
    /// Number of stacks, including those without live blocks.
    pub stacks: usize,
    /// Live bytes.
    pub live_bytes: u64,
}

impl FrameKinds {
    const ALL: [(&str, Self); 5] = [
        ("native", Self::Native),
        ("java", Self::Java),
        ("jvm", Self::Jvm),
        ("kernel", Self::Kernel),
        ("unknown", Self::Unknown),
    ];

    const fn all(self) -> &'static [FrameKind] {
        match self {
            Self::Native => &[FrameKind::Native, FrameKind::Signal],
            Self::Java => &[FrameKind::Java, FrameKind::JavaInlined],
            Self::Jvm => &[FrameKind::Jvm, FrameKind::JvmGenerated],
            Self::Kernel => &[FrameKind::Kernel],
            Self::Unknown => &[FrameKind::Unknown],
        }
    }
}

impl FromStr for FrameKinds {
    type Err = UnknownFrameKinds;

    fn from_str(name: &str) -> Result<Self, UnknownFrameKinds> {
        let known = Self::ALL.into_iter().find(|(known, _)| *known == name);
        known.map(|(_, kinds)| kinds).ok_or_else(|| UnknownFrameKinds(name.to_owned()))
    }
}

/// An unknown name of frame kinds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown kind `{0}`: frames are native, java, jvm, kernel or unknown")]
pub struct UnknownFrameKinds(String);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::sample;

    fn shown(view: &StackFilter) -> Vec<u64> {
        let (profile, _) = view.apply(sample::profile());
        profile.stacks.iter().map(|stack| stack.id).collect()
    }

    fn regex(text: &str) -> Regex {
        Regex::new(text).unwrap()
    }

    #[test]
    fn a_focus_keeps_stacks_with_a_function_file_or_module_that_matches() {
        assert_eq!(shown(&StackFilter { focus: Some(regex("^list_")), ..StackFilter::default() }), [0x1ea4]);
        assert_eq!(
            shown(&StackFilter { focus: Some(regex(r"copies\.rs$")), ..StackFilter::default() }),
            [0x05e]
        );
        assert_eq!(shown(&StackFilter { focus: Some(regex("libclosed")), ..StackFilter::default() }), [0xb0]);
    }

    #[test]
    fn what_is_ignored_is_left_out_even_of_a_focus() {
        let view = StackFilter {
            focus: Some(regex("main")),
            ignore: Some(regex("list_|vector|rust|copies")),
            ..StackFilter::default()
        };
        assert_eq!(shown(&view), [0xdead]);
    }

    #[test]
    fn frames_of_other_kinds_are_left_out_and_stacks_without_any() {
        let view = StackFilter { kinds: vec!["unknown".parse().unwrap()], ..StackFilter::default() };
        let (profile, shown) = view.apply(sample::profile());
        assert_eq!(profile.stacks.len(), 1);
        assert_eq!(profile.stacks[0].frames.len(), 2);
        assert_eq!((shown.of.live_bytes, shown.of.stacks, shown.all.stacks), (300, 1, 6));
        assert_eq!(
            "C".parse::<FrameKinds>().unwrap_err().to_string(),
            "unknown kind `C`: frames are native, java, jvm, kernel or unknown"
        );
    }

    #[test]
    fn verdicts_are_those_on_what_is_kept() {
        let judged = sample::judged();
        let view = StackFilter { focus: Some(regex("^list_")), ..StackFilter::default() };
        let (profile, _) = view.apply(judged.clone());
        let sites: Vec<_> = profile.verdicts.iter().flat_map(|verdict| verdict.stacks.clone()).collect();
        assert_eq!(sites, [0x1ea4]);
        let nothing = StackFilter { focus: Some(regex("no such function")), ..StackFilter::default() };
        assert!(nothing.apply(judged.clone()).0.verdicts.is_empty());
        assert_eq!(StackFilter::default().apply(judged.clone()).0, judged);
    }

    #[test]
    fn a_verdict_on_several_stacks_is_left_those_that_are_kept() {
        let mut judged = sample::judged();
        let [one, other] = [0, 1].map(|index| judged.stacks[index].clone());
        judged.verdicts.truncate(1);
        let verdict = &mut judged.verdicts[0];
        verdict.stacks = [one.id, other.id].into();
        verdict.frames = other.frames.clone();
        verdict.caller = other.frames.len() - 1;
        let view = StackFilter { ignore: Some(regex("^list_")), ..StackFilter::default() };
        let (profile, _) = view.apply(judged);
        let verdict = &profile.verdicts[0];
        assert_eq!(
            (&verdict.stacks[..], verdict.live, &verdict.frames),
            (&[one.id][..], one.live, &one.frames)
        );
        assert_eq!(verdict.hidden_stacks, 1);
    }

    #[test]
    fn a_verdicts_caller_is_the_first_that_is_shown() {
        let mut judged = sample::judged();
        judged.verdicts.truncate(4);
        judged.verdicts.drain(..3);
        let verdict = judged.verdicts[0].clone();
        let frame = verdict.frames[verdict.caller].clone();
        let view = StackFilter { kinds: vec![FrameKinds::Unknown], ..StackFilter::default() };
        let (profile, _) = view.apply(judged);
        if let [verdict] = &profile.verdicts[..] {
            assert!(verdict.frames.iter().all(|frame| frame.kind == FrameKind::Unknown));
            assert_eq!(verdict.frames[verdict.caller], frame);
        } else {
            panic!("{:?}", profile.verdicts);
        }
    }
}
