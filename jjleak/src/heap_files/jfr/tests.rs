use proptest::prelude::*;

use super::*;
use crate::heap_files::{Amount, NamedFormat, NamedKind};

/// Numbers of the types of a recording.
const STRING: u64 = 20;
const SYMBOL: u64 = 21;
const CLASS: u64 = 22;
const METHOD: u64 = 23;
const FRAME_TYPE: u64 = 24;
const FRAME: u64 = 25;
const STACK: u64 = 26;
const LONG: u64 = 27;
const SAMPLE: u64 = 30;
const MALLOC: u64 = 31;
const FREE: u64 = 32;

/// A field: its name, type, and whether it is in a pool, or an array.
type Field = (&'static str, u64, bool, bool);

const TYPES: [(u64, &str, &[Field]); 11] = [
    (STRING, "java.lang.String", &[]),
    (LONG, "long", &[]),
    (SYMBOL, "jdk.types.Symbol", &[("string", STRING, false, false)]),
    (CLASS, "java.lang.Class", &[("name", SYMBOL, true, false)]),
    (
        METHOD,
        "jdk.types.Method",
        &[("type", CLASS, true, false), ("name", SYMBOL, true, false), ("descriptor", SYMBOL, true, false)],
    ),
    (FRAME_TYPE, "jdk.types.FrameType", &[("description", STRING, false, false)]),
    (
        FRAME,
        "jdk.types.StackFrame",
        &[
            ("method", METHOD, true, false),
            ("lineNumber", LONG, false, false),
            ("type", FRAME_TYPE, true, false),
        ],
    ),
    (STACK, "jdk.types.StackTrace", &[("frames", FRAME, false, true)]),
    (
        SAMPLE,
        "jdk.ObjectAllocationSample",
        &[
            ("startTime", LONG, false, false),
            ("stackTrace", STACK, true, false),
            ("objectClass", CLASS, true, false),
            ("weight", LONG, false, false),
        ],
    ),
    (
        MALLOC,
        "profiler.Malloc",
        &[
            ("startTime", LONG, false, false),
            ("stackTrace", STACK, true, false),
            ("address", LONG, false, false),
            ("size", LONG, false, false),
        ],
    ),
    (FREE, "profiler.Free", &[("startTime", LONG, false, false), ("address", LONG, false, false)]),
];

/// The lowest seven bits.
fn seven_bits(number: u64) -> u8 {
    u8::try_from(number & 0x7f).unwrap()
}

fn number(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push(seven_bits(number) | 0x80);
        number >>= 7;
    }
    bytes.push(seven_bits(number));
    bytes
}

fn numbers(all: &[u64]) -> Vec<u8> {
    all.iter().flat_map(|one| number(*one)).collect()
}

fn text(text: &str) -> Vec<u8> {
    [vec![3], number(text.len() as u64), text.as_bytes().to_vec()].concat()
}

/// An event with its size, in a fixed number of bytes.
fn event(content: &[u8]) -> Vec<u8> {
    let size = content.len() as u64 + 2;
    [vec![seven_bits(size) | 0x80, seven_bits(size >> 7)], content.to_vec()].concat()
}

fn description() -> Vec<u8> {
    let mut strings = Vec::<String>::new();
    let mut index = |string: &str| {
        let known = strings.iter().position(|known| known == string);
        known.unwrap_or_else(|| {
            strings.push(string.to_owned());
            strings.len() - 1
        }) as u64
    };
    let mut element = |name: &str, attributes: &[(&str, String)], children: &[Vec<u8>]| {
        let mut bytes = numbers(&[index(name), attributes.len() as u64]);
        for (name, value) in attributes {
            bytes.extend(numbers(&[index(name), index(value)]));
        }
        bytes.extend(number(children.len() as u64));
        bytes.extend(children.concat());
        bytes
    };
    let mut classes = Vec::new();
    for (id, name, fields) in TYPES {
        let mut of_class = Vec::new();
        for (name, of, in_pool, is_array) in fields {
            let mut attributes = vec![("name", (*name).to_owned()), ("class", of.to_string())];
            attributes.extend(in_pool.then(|| ("constantPool", "true".to_owned())));
            attributes.extend(is_array.then(|| ("dimension", "1".to_owned())));
            of_class.push(element("field", &attributes, &[]));
        }
        classes.push(element("class", &[("id", id.to_string()), ("name", name.to_owned())], &of_class));
    }
    let metadata = element("metadata", &[], &classes);
    let root = element("root", &[], &[metadata]);
    let strings: Vec<_> = strings.iter().map(|string| text(string)).collect();
    event(&[numbers(&[DESCRIPTION, 0, 0, 0, strings.len() as u64]), strings.concat(), root].concat())
}

fn pools() -> Vec<u8> {
    let symbols = [
        "java/util/ArrayList",
        "grow",
        "[Ljava/lang/String;",
        "Main",
        "main",
        "libc.so.6",
        "malloc",
        "()V",
        "()L;",
    ];
    let symbols: Vec<_> =
        (1..).zip(symbols).map(|(key, symbol)| [number(key), text(symbol)].concat()).collect();
    let kinds = ["Inlined", "JIT compiled", "Native"];
    let kinds: Vec<_> = (1..).zip(kinds).map(|(key, kind)| [number(key), text(kind)].concat()).collect();
    let pools = [
        [numbers(&[SYMBOL, 9]), symbols.concat()].concat(),
        // By the numbers of their names.
        numbers(&[CLASS, 4, 1, 1, 2, 3, 3, 4, 4, 6]),
        // By their classes, names and descriptors.
        numbers(&[METHOD, 3, 1, 1, 2, 8, 2, 3, 5, 8, 3, 4, 7, 9]),
        [numbers(&[FRAME_TYPE, 3]), kinds.concat()].concat(),
        // Of Java: an inlined method, line 7, and the one that it is inlined into. Of C: malloc.
        numbers(&[STACK, 2, 1, 2, 1, 7, 1, 2, 9, 2, 2, 1, 3, 0, 3]),
    ];
    event(&[numbers(&[POOLS, 0, 0, 0]), vec![0], number(pools.len() as u64), pools.concat()].concat())
}

fn chunk(events: &[Vec<u8>]) -> Vec<u8> {
    let content = [events.concat(), pools(), description()].concat();
    let size = (HEADER_BYTES + content.len()) as u64;
    let at = size - description().len() as u64;
    let header = [MAGIC, &[0, 2, 0, 1], &size.to_be_bytes(), &[0; 8], &at.to_be_bytes()].concat();
    [header, vec![0; HEADER_BYTES - 32], content].concat()
}

fn sample(stack: u64, class: u64, weight: u64) -> Vec<u8> {
    event(&numbers(&[SAMPLE, 1, stack, class, weight]))
}

fn stacks(file: &NamedFile) -> Vec<(String, Amount, Option<Amount>)> {
    let name = |index: &u32| {
        let frame = &file.frames[*index as usize];
        format!("{} {:?} {}", frame.function, frame.kind, frame.line)
    };
    let shown = |frames: &[u32]| frames.iter().map(name).collect::<Vec<_>>().join(" < ");
    file.stacks.iter().map(|stack| (shown(&stack.frames), stack.live, stack.allocated)).collect()
}

const fn amount(objects: u64, bytes: u64) -> Amount {
    Amount { bytes, objects }
}

#[test]
fn samples_of_objects_count_by_class_and_stack_in_all_chunks() {
    let recording = [chunk(&[sample(1, 2, 100), sample(1, 2, 50)]), chunk(&[sample(1, 2, 7)])].concat();
    let file = read(&recording[..]).unwrap();
    let stack = "java.lang.String[] Class 0 < java.util.ArrayList.grow JavaInlined 7 < Main.main Java 9";
    assert_eq!(stacks(&file), [(stack.to_owned(), amount(3, 157), Some(amount(3, 157)))]);
    assert_eq!((file.format, file.damage), (NamedFormat::Jfr(JfrEvents::Samples), None));
}

#[test]
fn native_memory_is_live_until_it_is_freed_and_comes_before_objects() {
    let malloc = |time, address, size| event(&numbers(&[MALLOC, time, 2, address, size]));
    let free = |time, address| event(&numbers(&[FREE, time, address]));
    // Not in the order of time; the last free is of an unknown block, and an address is used again.
    let events =
        [free(5, 16), malloc(1, 16, 100), malloc(2, 32, 40), malloc(6, 16, 8), free(9, 77), sample(1, 2, 1)];
    let file = read(&chunk(&events)[..]).unwrap();
    assert_eq!(stacks(&file), [("malloc Native 0".to_owned(), amount(2, 48), Some(amount(3, 148)))]);
    assert_eq!(file.format, NamedFormat::Jfr(JfrEvents::Native));
    let functions: Vec<_> = file.frames.iter().filter(|frame| frame.kind == NamedKind::Native).collect();
    assert_eq!(functions.iter().map(|frame| frame.module.as_str()).collect::<Vec<_>>(), ["libc.so.6"]);
}

#[test]
fn what_is_damaged_is_counted_and_the_rest_is_there() {
    let whole = chunk(&[sample(1, 2, 100)]);
    let mut damaged = chunk(&[vec![0xff, 0x7f], sample(1, 2, 100)]);
    damaged.extend(&whole);
    let file = read(&damaged[..]).unwrap();
    assert_eq!(file.stacks[0].live, amount(1, 100));
    let damage = file.damage.unwrap();
    assert_eq!((damage.lines, damage.first), (1, 1));

    let cut_off = read(&[&whole[..], &whole[..whole.len() - 9]].concat()[..]).unwrap();
    assert_eq!(cut_off.damage.unwrap().first, 2);
    let mut endless = whole.clone();
    endless[8..16].fill(0xff);
    assert!(read(&endless[..]).is_err_and(|error| error.to_string().contains("256 MiB")));
    endless[8..16].fill(0);
    assert!(read(&endless[..]).is_err_and(|error| error.to_string().contains("not finished")));
}

proptest! {
    #[test]
    fn any_recording_is_read(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8)) {
        let mut recording = chunk(&[sample(1, 2, 100), sample(1, 1, 3)]);
        for (at, byte) in changes {
            let at = at.index(recording.len());
            recording[at] = byte;
        }
        let _ = read(&recording[..]);
    }
}
