//! Collapsed stacks: a line for each live stack, root first, for `flamegraph.pl`, inferno and speedscope: `main;grow_list;malloc
//! 1536000`.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::Options;
use super::label::{NO_STACK, label};
use crate::profile::{Profile, StackProfile};

/// Writes a line for each live stack, sorted; stacks with the same text share a line.
pub(super) fn write(profile: &Profile, options: &Options, out: &mut impl Write) -> io::Result<()> {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for stack in profile.stacks.iter().filter(|stack| !stack.live.is_nothing()) {
        let total = lines.entry(collapse(stack, options.inverted)).or_default();
        *total = total.saturating_add(options.value.of(stack.live));
    }
    lines.iter().try_for_each(|(stack, total)| writeln!(out, "{stack} {total}"))
}

fn collapse(stack: &StackProfile, inverted: bool) -> String {
    if stack.frames.is_empty() {
        return NO_STACK.to_owned();
    }
    let mut names: Vec<_> = stack.frames.iter().map(|frame| frame_name(&label(frame))).collect();
    if !inverted {
        names.reverse();
    }
    names.join(";")
}

/// The label without characters that have a meaning in the format: `;` separates frames, readers trim space around names, and a
/// line that starts with `# ` is a comment.
pub(super) fn frame_name(label: &str) -> String {
    let name = label.trim().replace(';', ":");
    match name.strip_prefix("# ") {
        Some(rest) => format!("#_{rest}"),
        None if name.is_empty() => "_".to_owned(),
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::{Value, sample};
    use proptest::prelude::*;

    fn collapsed(profile: &Profile, value: Value) -> String {
        let mut out = Vec::new();
        write(profile, &Options { value, ..sample::options() }, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn sample_profile() {
        insta::assert_snapshot!(collapsed(&sample::profile(), Value::Bytes));
    }

    #[test]
    fn stacks_that_read_the_same_are_merged() {
        let mut profile = sample::profile();
        profile.stacks = vec![profile.stacks[1].clone(), profile.stacks[1].clone()];
        assert_eq!(collapsed(&profile, Value::Objects), "main;grow_list;list_push;new_node;malloc 24\n");
    }

    #[test]
    fn inverted_stacks_begin_with_the_allocation_function() {
        let profile = sample::profile();
        assert_eq!(collapse(&profile.stacks[1], true), "malloc;new_node;list_push;grow_list;main");
    }

    proptest! {
        #[test]
        fn lines_add_up_to_what_lives(profile in sample::arbitrary_profile()) {
            for value in [Value::Bytes, Value::Objects] {
                let collapsed = collapsed(&profile, value);
                let total: u64 = collapsed.lines().map(|line| {
                    prop_assert!(!line.starts_with("# "), "{line:?}");
                    let (_, total) = line.rsplit_once(' ').unwrap();
                    Ok(total.parse::<u64>().unwrap())
                }).sum::<Result<_, _>>()?;
                prop_assert_eq!(total, value.of(profile.live()));
            }
        }

        #[test]
        fn a_line_has_as_many_frames_as_its_stack(profile in sample::arbitrary_profile()) {
            for stack in &profile.stacks {
                prop_assert_eq!(collapse(stack, false).split(';').count(), stack.frames.len().max(1));
            }
        }
    }
}
