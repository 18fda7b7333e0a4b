use proptest::prelude::*;

use super::*;

const THREADED: &str = "heap_v2/524288
  t*: 3: 1049088 [0: 0]
  t0: 3: 1049088 [0: 0]
@ 0x1000 0x2000
  t*: 1: 512 [0: 0]
  t0: 1: 512 [0: 0]
@ 0x1000 0x3000 0x4000
  t*: 2: 1048576 [4: 2097152]
  t0: 2: 1048576 [4: 2097152]

MAPPED_LIBRARIES:
1000-5000 r-xp 00000000 fd:01 7 /opt/program
";

fn read(text: &str) -> HeapFile {
    super::read(text.as_bytes()).unwrap()
}

/// A stack and its memory.
struct HeapStack {
    addresses: Vec<u64>,
    live: Estimate,
    allocated: Option<Estimate>,
}

fn stacks_of(heap: &HeapFile) -> Vec<HeapStack> {
    let stacks = heap.parts.iter().flat_map(|part| part.addresses().zip(part.estimates(heap.scaling)));
    let addresses = |numbers: &[u32]| numbers.iter().map(|number| heap.addresses.get(*number)).collect();
    let stack = |(numbers, (live, allocated))| HeapStack { addresses: addresses(numbers), live, allocated };
    stacks.map(stack).collect()
}

fn assert_near(value: f64, expected: f64) {
    assert!((value - expected).abs() <= expected * 1e-9, "{value}, expected {expected}");
}

#[test]
fn jemallocs_figures_are_scaled_by_the_probability_of_a_sample() {
    let heap = read(THREADED);

    assert_eq!((stacks_of(&heap).len(), &heap.damage), (2, &None));
    let addresses: Vec<_> = stacks_of(&heap).into_iter().map(|stack| stack.addresses).collect();
    assert_eq!(addresses, [&[0x1000, 0x2000][..], &[0x1000, 0x3000, 0x4000]]);
    // 1 / (1 - exp(-512 / 524288)) objects.
    assert_near(stacks_of(&heap).first().unwrap().live.objects, 1_024.500_081_38);
    assert_near(stacks_of(&heap).first().unwrap().live.bytes, 1_024.500_081_38 * 512.);
    assert_eq!(stacks_of(&heap).first().unwrap().allocated, None, "not recorded");
    assert_near(stacks_of(&heap).get(1).unwrap().live.objects, 2. / (1. - (-1_f64).exp()));
    assert_near(stacks_of(&heap).get(1).unwrap().allocated.unwrap().objects, 4. / (1. - (-1_f64).exp()));
    assert_eq!(heap.mapped, "1000-5000 r-xp 00000000 fd:01 7 /opt/program\n");
}

#[test]
fn a_sample_of_every_allocation_is_exact() {
    let heap = read(&THREADED.replace("heap_v2/524288", "heap_v2/1"));
    assert_eq!(heap.scaling, Scaling::Exact);
    assert_eq!(
        stacks_of(&heap).first().unwrap().live,
        Estimate { objects: 1., bytes: 512., ..Estimate::default() }
    );
}

#[test]
fn the_first_line_of_older_formats_says_how_figures_are_scaled() {
    let scaling = |kind: &str| read(&format!("heap profile: 1: 100 [2: 300]{kind}\n")).scaling;
    assert_eq!(scaling(" @ heapprofile"), Scaling::Exact);
    assert_eq!(scaling(" @ growthz"), Scaling::Exact);
    assert_eq!(scaling(""), Scaling::Exact);
    assert_eq!(scaling(" @ heap/1048576"), Scaling::Linear { bytes: 524_288. });
    assert_eq!(scaling(" @ heap_v2/524288"), Scaling::Exponential { bytes: 524_288. });
    assert_eq!(read("heap profile: 1: 100 [1: 100]\n").scaling, Scaling::Linear { bytes: 131_072. });
}

#[test]
fn a_line_of_an_older_format_is_a_stack() {
    let heap = read(
        "heap profile:  3:  300 [ 5:  700] @ heapprofile\n     2:  200 [ 3: 500] @ 0x10 0x20\n\nMAPPED_LIBRARIES:\n",
    );
    assert_eq!(heap.damage, None);
    let stack = &stacks_of(&heap)[0];
    assert_eq!((&stack.addresses[..], stack.live.bytes), (&[0x10, 0x20][..], 200.));
    assert_eq!(stack.allocated.map(|allocated| allocated.objects), Some(3.));
}

#[test]
fn damaged_lines_are_counted_and_the_rest_is_read() {
    let damaged = THREADED.replace("@ 0x1000 0x2000", "@ 0x1000 0xxyz");
    let heap = read(&damaged);
    assert_eq!(stacks_of(&heap).len(), 1);
    let reason = "an address is not a hexadecimal number";
    assert_eq!(heap.damage, Some(Damage { lines: 1, first: 4, reason }));
}

#[test]
fn a_file_that_was_cut_off_says_so() {
    let heap = read(&THREADED[..THREADED.find("  t*: 2").unwrap()]);
    assert_eq!(stacks_of(&heap).len(), 1);
    let reason = "the file ends within a stack";
    assert_eq!(heap.damage, Some(Damage { lines: 2, first: 7, reason }));
}

#[test]
fn other_files_are_refused_by_their_first_line() {
    assert!(!is_heap_file(b"\x1f\x8b") && is_heap_file(b"heap_v2/1\n") && is_heap_file(b"heap profile: "));
    let error = super::read(&b"heap_v3/7\n"[..]).unwrap_err();
    assert_eq!(error.to_string(), "line 1 is not the beginning of a heap profile: \"heap_v3/7\"");
}

#[test]
fn a_line_without_an_end_takes_little_memory() {
    let endless =
        format!("heap_v2/1\n@ {}\n@ 0x1\n  t*: 1: 1 [0: 0]\nMAPPED_LIBRARIES:\n", "0x1 ".repeat(1 << 20));
    let heap = read(&endless);
    assert_eq!(stacks_of(&heap).len(), 1);
    assert_eq!(stacks_of(&heap).first().unwrap().addresses, [1]);
    assert_eq!(heap.damage, Some(Damage { lines: 1, first: 2, reason: "it is too long" }));
}

/// All figures of all stacks.
fn sums(small: SmallStacks, heap: &HeapFile) -> [f64; 8] {
    let (mut live, mut allocated) = (small.live, small.allocated);
    for stack in stacks_of(heap) {
        live += stack.live;
        allocated += stack.allocated.unwrap();
    }
    let of = |sum: Estimate| [sum.bytes, sum.objects, sum.bytes_variance, sum.objects_variance];
    [of(live), of(allocated)].concat().try_into().unwrap()
}

proptest! {
    #[test]
    fn small_stacks_are_summed_up_if_all_take_too_much_memory(
        sizes in prop::collection::vec(1_u64..200, 1..400),
        stacks in 1_usize..400,
        interval in prop::sample::select(&[1_u32, 524_288][..]),
    ) {
        let lines = sizes.iter().map(|size| format!("@ {size:#x}\n  t*: 1: {size} [2: {}]\n", 2 * size));
        let text = format!("heap_v2/{interval}\n{}MAPPED_LIBRARIES:\n", lines.collect::<String>());
        let all = read(&text);
        let most = stacks * (small::memory(1) + Addresses::BYTES);
        let heap = read_within(text.as_bytes(), most).unwrap();

        prop_assert_eq!(all.small, None);
        prop_assert!(heap.memory() <= most);
        prop_assert_eq!(heap.small.is_some(), all.memory() > most);
        let small = heap.small.unwrap_or_default();
        let kept: Vec<_> = stacks_of(&heap);
        prop_assert_eq!(kept.len() + usize::try_from(small.stacks).unwrap(), sizes.len());
        prop_assert!(kept.iter().all(|stack| stack.allocated.unwrap().bytes >= small.most_bytes));
        prop_assert!(kept.iter().all(|stack| stack.live == heap.scaling.estimate(1, stack.addresses[0])));
        let larger = stacks_of(&all).iter().filter(|stack| stack.allocated.unwrap().bytes > small.most_bytes).count();
        prop_assert!(kept.len() >= larger, "all that are larger are kept");
        let before = sums(SmallStacks::default(), &all);
        for (sum, before) in sums(small, &heap).into_iter().zip(before) {
            assert_near(sum, before);
        }
    }

    #[test]
    fn any_text_is_read(text in "(heap_v2/[0-9]{0,7}|heap profile: [0-9: \\[\\]@]{0,30})\n([@t*: 0-9x\\[\\]\n-]{0,40}\n){0,20}") {
        if let Ok(heap) = super::read(text.as_bytes()) {
            for stack in stacks_of(&heap) {
                prop_assert!(stack.live.objects.is_finite() && stack.live.bytes_variance >= 0.);
            }
        }
    }
}
