//! Profiles of the text files of other tools whose stacks have names: collapsed stacks, and those of heaptrack.

use std::io::BufRead;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::heap_profile::{damaged, of_file};
use super::saved_series::SavedProfile;
use crate::fast_map::FastMap;
use crate::heap_files::{self, Amount, Damage, JfrEvents, NamedFormat, NamedFrame, NamedKind};
use crate::profile::{
    DistinctIds, Frame, FrameKind, ProcessInfo, ProcessKind, Sampling, SharedFrame, StackProfile, Totals,
};

/// Reads a profile; also returns remarks on how it was read.
pub(super) fn read(
    file: impl BufRead,
    taken_at: Timestamp,
) -> Result<(SavedProfile, Vec<String>), heap_files::Error> {
    let named = heap_files::read_named(file)?;
    let is_collapsed = named.format == NamedFormat::Collapsed;
    let is_recording = matches!(named.format, NamedFormat::Jfr(_));
    let damaged = named.damage.as_ref().map(if is_recording { damaged_chunks } else { damaged });
    let mut remarks: Vec<_> = damaged.into_iter().collect();
    remarks.extend(remark_on(named.format).map(str::to_owned));
    let frame = |frame: &NamedFrame| if is_collapsed { of_collapsed(frame) } else { of_tool(frame) };
    let frames: Vec<SharedFrame> = named.frames.iter().map(|named| Arc::new(frame(named))).collect();
    let mut classes = FastMap::<u32, SharedFrame>::default();
    let mut ids = DistinctIds::default();
    let stacks = named.stacks.into_iter().map(|stack| {
        let mut of_stack: Vec<_> =
            stack.frames.iter().filter_map(|index| frames.get(*index as usize)).map(Arc::clone).collect();
        if let [leaf, caller, ..] = stack.frames[..]
            && is_collapsed
            && let Some(class) = class(&named.frames[leaf as usize], &frames[caller as usize])
        {
            of_stack[0] = Arc::clone(classes.entry(leaf).or_insert_with(|| Arc::new(class)));
        }
        let (live, allocated) = (totals(stack.live), totals(stack.allocated.unwrap_or(stack.live)));
        StackProfile::foreign(ids.of(&of_stack), live, allocated, of_stack.into())
    });
    let stacks = stacks.collect();
    let mut profile = of_file(taken_at, process(&named.command), Sampling::Off, stacks);
    let ran = SignedDuration::try_from(named.duration).unwrap_or_default();
    profile.started_at = taken_at.checked_sub(ran).unwrap_or(taken_at);
    Ok((SavedProfile { profile, instance: None }, remarks))
}

/// A remark on damage of a recording.
fn damaged_chunks(Damage { lines, first, reason }: &Damage) -> String {
    format!("{lines} damaged chunks are left out from the damage on; the first is chunk {first}: {reason}")
}

/// A remark on the meaning of a file's figures.
const fn remark_on(format: NamedFormat) -> Option<&'static str> {
    match format {
        NamedFormat::Heaptrack => None,
        NamedFormat::Collapsed => {
            Some("collapsed stacks do not say what their numbers count: they are taken for live bytes")
        }
        NamedFormat::Jfr(JfrEvents::Native) => {
            Some("live is what malloc has returned and free has not seen within the recording")
        }
        NamedFormat::Jfr(JfrEvents::LiveObjects) => {
            Some("live are the sampled objects that were still there at the end of the recording")
        }
        NamedFormat::Jfr(JfrEvents::Buffers) => Some(
            "the recording does not say what is freed: figures are the sizes of the buffers that objects were allocated from",
        ),
        NamedFormat::Jfr(JfrEvents::Samples) => {
            Some("the recording does not say what is freed: figures are the weights of sampled allocations")
        }
    }
}

const fn totals(Amount { bytes, objects }: Amount) -> Totals {
    Totals { bytes, objects }
}

fn process(command: &str) -> ProcessInfo {
    let exe = command.split(' ').next().unwrap_or_default();
    ProcessInfo {
        pid: 0,
        start_time: 0,
        comm: exe.rsplit('/').next().unwrap_or_default().to_owned(),
        exe: exe.to_owned(),
        kind: ProcessKind::Native,
        forked_from: None,
        container_pid: None,
    }
}

/// A frame whose kind and place are known.
fn of_tool(frame: &NamedFrame) -> Frame {
    let NamedFrame { function, file, module, line, address, inlined, kind } = frame.clone();
    let kind = match kind {
        NamedKind::Unsaid | NamedKind::Native if function.is_empty() => FrameKind::Unknown,
        NamedKind::Unsaid | NamedKind::Native => FrameKind::Native,
        NamedKind::Java => FrameKind::Java,
        NamedKind::JavaInlined => FrameKind::JavaInlined,
        NamedKind::Kernel => FrameKind::Kernel,
        NamedKind::Class => FrameKind::Class,
    };
    Frame { address, symbol: function, module, file, line, inlined, kind, ..Frame::default() }
}

/// Frames as async-profiler writes them (`src/frameName.cpp`): the packages of Java methods with slashes, functions of the kernel with
/// a mark, and with `-a` also methods.
fn of_collapsed(frame: &NamedFrame) -> Frame {
    const MARKS: [(&str, FrameKind); 5] = [
        ("_[j]", FrameKind::Java),
        ("_[i]", FrameKind::JavaInlined),
        ("_[0]", FrameKind::Java),
        ("_[1]", FrameKind::Java),
        ("_[k]", FrameKind::Kernel),
    ];
    let name = frame.function.as_str();
    let marked = MARKS.iter().find_map(|(mark, kind)| Some((name.strip_suffix(mark)?, *kind)));
    let (name, kind) =
        marked.unwrap_or_else(|| (name, if is_java(name) { FrameKind::Java } else { FrameKind::Native }));
    let is_java = matches!(kind, FrameKind::Java | FrameKind::JavaInlined);
    let symbol = if is_java { name.replace('/', ".") } else { name.to_owned() };
    Frame { symbol, kind, inlined: kind == FrameKind::JavaInlined, ..Frame::default() }
}

/// The class of an allocated object: a leaf below a Java method, with the mark of an inlined method or of the kernel, and with no
/// slash in its name, as methods have.
fn class(leaf: &NamedFrame, caller: &Frame) -> Option<Frame> {
    let name = leaf.function.strip_suffix("_[i]").or_else(|| leaf.function.strip_suffix("_[k]"))?;
    // Methods of classes in no package have no slash, either.
    let is_java =
        matches!(caller.kind, FrameKind::Java | FrameKind::JavaInlined) || caller.symbol.contains('.');
    let class = || Frame { symbol: name.to_owned(), kind: FrameKind::Class, ..Frame::default() };
    (is_java && !name.contains('/')).then(class)
}

/// Returns true for names like `java/util/ArrayList.add`.
fn is_java(name: &str) -> bool {
    let is_word = |word: &str| {
        let mut letters = word.chars();
        letters.next().is_some_and(|first| first.is_alphabetic() || first == '_' || first == '$')
            && letters.all(|letter| letter.is_alphanumeric() || "_$<>.".contains(letter))
    };
    name.contains('/')
        && name.rsplit('/').next().is_some_and(|last| last.contains('.'))
        && name.split('/').all(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_java_are_told_by_their_marks_and_packages() {
        let frame = |name: &str| {
            let Frame { symbol, kind, .. } =
                of_collapsed(&NamedFrame { function: name.to_owned(), ..NamedFrame::default() });
            (symbol, kind)
        };
        for (name, symbol, kind) in [
            ("java/util/ArrayList.add", "java.util.ArrayList.add", FrameKind::Java),
            ("App$1.<init>_[j]", "App$1.<init>", FrameKind::Java),
            ("java/lang/String.length_[i]", "java.lang.String.length", FrameKind::JavaInlined),
            ("do_mmap_[k]", "do_mmap", FrameKind::Kernel),
            ("std::io::Read/x", "std::io::Read/x", FrameKind::Native),
            ("a/b", "a/b", FrameKind::Native),
            ("malloc", "malloc", FrameKind::Native),
        ] {
            assert_eq!(frame(name), (symbol.to_owned(), kind), "{name}");
        }
    }

    #[test]
    fn a_leaf_with_a_mark_below_a_java_method_is_a_class() {
        let text = "Main.run;byte[]_[k] 100\njava/util/ArrayList.grow;java.lang.Object[]_[i] 50\nmain;clear_page_[k] 7\n\
            java/util/ArrayList.add;java/util/ArrayList.grow_[i] 3\n";
        let (saved, _) = read(text.as_bytes(), Timestamp::UNIX_EPOCH).unwrap();
        let leaves = saved.profile.stacks.iter().map(|stack| &stack.frames[0]);
        let leaves: Vec<_> = leaves.map(|leaf| (leaf.symbol.as_str(), leaf.kind)).collect();
        assert_eq!(
            leaves,
            [
                ("byte[]", FrameKind::Class),
                ("java.lang.Object[]", FrameKind::Class),
                ("clear_page", FrameKind::Kernel),
                ("java.util.ArrayList.grow", FrameKind::JavaInlined)
            ]
        );
    }

    #[test]
    fn the_program_of_a_command_line_is_the_process() {
        let text = "v 10400 3\nX /usr/bin/app -x\nc 3e8\n";
        let (saved, remarks) = read(text.as_bytes(), Timestamp::from_second(100).unwrap()).unwrap();
        let profile = saved.profile;
        assert_eq!((profile.process.comm.as_str(), profile.process.exe.as_str()), ("app", "/usr/bin/app"));
        assert_eq!(profile.started_at, Timestamp::from_second(99).unwrap());
        assert!(remarks.is_empty(), "{remarks:?}");
    }
}
