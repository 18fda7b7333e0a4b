use std::collections::BTreeMap;

use jjleak_common::mapping::MAP_ANONYMOUS;
use jjleak_common::process::ImageId;
use proptest::prelude::*;

use super::*;

const BASE: u64 = 0x7f00_0000_0000;
const FAILED: i64 = -12;

fn page(number: u64) -> u64 {
    BASE + number * PAGE
}

fn event(call: Call, arguments: [u64; 5]) -> Event {
    Event {
        time_ns: 0,
        arguments,
        result: 0,
        image: ImageId(1),
        thread: 1,
        stack: 0,
        call: call as u8,
        flags: 0,
        reserved: 0,
    }
}

/// Plays a complete call.
fn play(table: &mut TrackedMappings, call: Call, arguments: [u64; 5], result: i64, stack: u32) {
    if call != Call::Map || arguments[3] & MAP_FIXED != 0 {
        table.record(&event(call, arguments));
    }
    if call == Call::Unmap && result == 0 {
        return;
    }
    let reported = if call == Call::Break { [arguments[0], 0, 0, 0, 0] } else { arguments };
    table.record(&Event { result, stack, flags: flag::LEFT, ..event(call, reported) });
}

fn map(table: &mut TrackedMappings, at: u64, pages: u64, stack: u32) {
    let arguments = [0, pages * PAGE, 3, MAP_ANONYMOUS, 0];
    play(table, Call::Map, arguments, page(at).cast_signed(), stack);
}

fn unmap(table: &mut TrackedMappings, at: u64, pages: u64) {
    play(table, Call::Unmap, [page(at), pages * PAGE, 0, 0, 0], 0, 0);
}

fn remap(table: &mut TrackedMappings, old: Range<u64>, new: Range<u64>, flags: u64, stack: u32) {
    let arguments =
        [page(old.start), (old.end - old.start) * PAGE, (new.end - new.start) * PAGE, flags, page(new.start)];
    play(table, Call::Remap, arguments, page(new.start).cast_signed(), stack);
}

fn table() -> TrackedMappings {
    table_of(MappingKinds::ANONYMOUS)
}

fn table_of(kinds: MappingKinds) -> TrackedMappings {
    TrackedMappings::new(kinds, SizeFilter::default())
}

/// Ranges in pages: first, count, stack.
fn ranges(table: &TrackedMappings) -> Vec<(u64, u64, u32)> {
    let pieces = table.ranges.iter().map(|piece| {
        let Range { start, end } = piece.range;
        ((start - BASE) / PAGE, (end - start) / PAGE, piece.allocation.stack)
    });
    pieces.collect()
}

#[test]
fn a_mapping_takes_whole_pages() {
    let mut table = table();
    play(&mut table, Call::Map, [0, 100, 3, MAP_ANONYMOUS, 0], page(0).cast_signed(), 7);
    assert_eq!(ranges(&table), [(0, 1, 7)]);
    assert_eq!(table.allocated().collect::<Vec<_>>(), [(7, Allocated { objects: 1, bytes: PAGE })]);
}

#[test]
fn huge_pages_are_whole_too() {
    let huge = MAP_ANONYMOUS | MAP_HUGETLB;
    assert_eq!(pages(0, 1, huge), 0..2 << 20);
    assert_eq!(pages(0, 1, huge | 30 << HUGE_SHIFT), 0..1 << 30);
    assert_eq!(pages(PAGE, u64::MAX, 0), PAGE..PAGE);
}

#[test]
fn unmapping_the_middle_leaves_two_ranges() {
    let mut table = table();
    map(&mut table, 0, 10, 7);
    unmap(&mut table, 3, 2);
    assert_eq!(ranges(&table), [(0, 3, 7), (5, 5, 7)]);
}

#[test]
fn unmapping_goes_across_ranges_and_holes() {
    let mut table = table();
    map(&mut table, 0, 3, 1);
    map(&mut table, 4, 2, 2);
    map(&mut table, 6, 3, 3);
    unmap(&mut table, 2, 5);
    assert_eq!(ranges(&table), [(0, 2, 1), (7, 2, 3)]);
}

#[test]
fn a_call_that_fails_puts_back_what_it_would_have_taken_as_if_nothing_had_been() {
    let mut table = table();
    map(&mut table, 0, 10, 7);
    for (call, arguments) in [
        (Call::Unmap, [page(3), 2 * PAGE, 0, 0, 0]),
        (Call::Map, [page(4), PAGE, 3, MAP_FIXED | MAP_ANONYMOUS, 0]),
        (Call::Remap, [page(0), 2 * PAGE, PAGE, MREMAP_FIXED, page(5)]),
    ] {
        play(&mut table, call, arguments, FAILED, 9);
        assert_eq!(ranges(&table), [(0, 10, 7)]);
    }
}

#[test]
fn an_address_that_another_thread_is_given_while_it_is_unmapped_is_its_own() {
    let mut table = table();
    map(&mut table, 0, 2, 7);
    let arguments = [page(0), 2 * PAGE, 0, 0, 0];
    table.record(&event(Call::Unmap, arguments));
    let map = Event {
        thread: 2,
        stack: 8,
        result: page(0).cast_signed(),
        flags: flag::LEFT,
        ..event(Call::Map, [0, PAGE, 3, MAP_ANONYMOUS, 0])
    };
    table.record(&map);
    table.record(&Event { flags: flag::LEFT, ..event(Call::Unmap, arguments) });
    assert_eq!(ranges(&table), [(0, 1, 8)]);
}

#[test]
fn a_fixed_mapping_replaces_what_is_there_and_a_file_replaces_it_by_nothing() {
    let mut table = table();
    map(&mut table, 0, 10, 7);
    let fixed = |at, flags| [page(at), PAGE, 3, MAP_FIXED | flags, 0];
    play(&mut table, Call::Map, fixed(2, MAP_ANONYMOUS), page(2).cast_signed(), 8);
    play(&mut table, Call::Map, fixed(5, 0), page(5).cast_signed(), 9);
    assert_eq!(ranges(&table), [(0, 2, 7), (2, 1, 8), (3, 2, 7), (6, 4, 7)]);
}

#[test]
fn each_kind_of_memory_takes_the_place_of_the_other_and_is_tracked_if_it_is_followed() {
    let ranges_of = |kinds| {
        let mut table = table_of(kinds);
        let fixed = |at, flags| [page(at), 4 * PAGE, 3, MAP_FIXED | flags, 0];
        play(&mut table, Call::Map, fixed(0, 0), page(0).cast_signed(), 7);
        play(&mut table, Call::Map, fixed(2, MAP_ANONYMOUS), page(2).cast_signed(), 8);
        play(&mut table, Call::Map, fixed(5, 0), page(5).cast_signed(), 9);
        unmap(&mut table, 7, 1);
        remap(&mut table, 0..1, 20..22, 1, 10);
        ranges(&table)
    };
    let (anonymous, files) = ([(2, 3, 8)], [(1, 1, 7), (5, 2, 9), (8, 1, 9), (20, 2, 10)]);
    assert_eq!(ranges_of(MappingKinds::ANONYMOUS), anonymous);
    assert_eq!(ranges_of(MappingKinds::FILES), files);
    let mut all = [&anonymous[..], &files].concat();
    all.sort_unstable();
    assert_eq!(ranges_of(MappingKinds::ALL), all);
}

#[test]
fn a_mapping_that_is_moved_and_grows_is_its_last_callers() {
    let mut table = table();
    map(&mut table, 0, 4, 7);
    remap(&mut table, 0..4, 20..26, 1, 8);
    assert_eq!(ranges(&table), [(20, 6, 8)]);
    assert_eq!(table.allocated().last(), Some((8, Allocated { objects: 1, bytes: 6 * PAGE })));
    remap(&mut table, 20..26, 20..21, 0, 9);
    assert_eq!(ranges(&table), [(20, 1, 9)]);
}

#[test]
fn a_part_of_a_mapping_can_be_moved_over_another() {
    let mut table = table();
    map(&mut table, 0, 4, 7);
    map(&mut table, 10, 4, 8);
    remap(&mut table, 1..2, 11..12, MREMAP_FIXED | 1, 9);
    assert_eq!(ranges(&table), [(0, 1, 7), (2, 2, 7), (10, 1, 8), (11, 1, 9), (12, 2, 8)]);
}

#[test]
fn holes_in_what_is_moved_stay_holes() {
    let mut table = table();
    map(&mut table, 1, 1, 7);
    map(&mut table, 3, 1, 7);
    remap(&mut table, 0..4, 20..25, 1, 9);
    assert_eq!(ranges(&table), [(21, 1, 9), (23, 2, 9)]);
}

#[test]
fn what_is_moved_without_being_unmapped_is_there_twice() {
    let mut table = table();
    map(&mut table, 0, 2, 7);
    remap(&mut table, 0..2, 20..22, MREMAP_DONTUNMAP | 1, 9);
    assert_eq!(ranges(&table), [(0, 2, 7), (20, 2, 9)]);
    remap(&mut table, 0..0, 30..32, 1, 9);
    assert_eq!(ranges(&table), [(0, 2, 7), (20, 2, 9), (30, 2, 9)]);
}

#[test]
fn memory_that_is_not_tracked_stays_untracked_when_moved() {
    let mut table = table();
    remap(&mut table, 0..4, 20..30, 1, 8);
    assert_eq!(ranges(&table), []);
}

#[test]
fn the_break_grows_and_shrinks_by_bytes() {
    let mut table = table();
    let mut move_break = |from: u64, to: u64, result: u64, stack| {
        play(
            &mut table,
            Call::Break,
            [BASE + to, BASE + from, 0, 0, 0],
            (BASE + result).cast_signed(),
            stack,
        );
        table.mapped().map(|mapped| (mapped.stack, mapped.bytes)).collect::<Vec<_>>()
    };
    assert_eq!(move_break(100, 300, 300, 1), [(1, 200)]);
    assert_eq!(move_break(300, 350, 350, 2), [(1, 200), (2, 50)]);
    // Out of memory: the break stays.
    assert_eq!(move_break(350, 1 << 40, 350, 2), [(1, 200), (2, 50)]);
    assert_eq!(move_break(350, 200, 200, 3), [(1, 100)]);
    // Below the start of the heap: refused.
    assert_eq!(move_break(200, 0, 200, 3), [(1, 100)]);
}

#[test]
fn a_break_whose_beginning_was_not_seen_gives_nothing() {
    let mut table = table();
    let left = event(Call::Break, [BASE + 100, 0, 0, 0, 0]);
    table.record(&Event { result: (BASE + 100).cast_signed(), flags: flag::LEFT, ..left });
    assert_eq!(ranges(&table), []);
}

#[test]
fn what_allocators_map_is_counted_by_the_blocks_in_it() {
    let mut table = table();
    let left = event(Call::Map, [0, PAGE, 3, MAP_ANONYMOUS, 0]);
    table.record(&Event { result: page(0).cast_signed(), flags: flag::LEFT | flag::NESTED, ..left });
    assert_eq!((ranges(&table), table.tally().by_allocators), (vec![], 1));
}

#[test]
fn filters_go_by_the_size_of_a_mapping() {
    let mut table =
        TrackedMappings::new(MappingKinds::ANONYMOUS, SizeFilter { min: 2 * PAGE, max: 3 * PAGE });
    for pages in 1..5 {
        map(&mut table, pages * 10, pages, 7);
    }
    assert_eq!((ranges(&table), table.tally().filtered), (vec![(20, 2, 7), (30, 3, 7)], 2));
}

const PAGES: u64 = 32;

/// Change by a process of the first pages of its address space.
#[derive(Debug, Clone)]
enum Action {
    Map(Range<u64>),
    MapFile(Range<u64>),
    Unmap(Range<u64>),
    FailToUnmap(Range<u64>),
    Move(Range<u64>, Range<u64>),
}

fn some_pages() -> impl Strategy<Value = Range<u64>> {
    (0..PAGES, 1..8u64).prop_map(|(start, length)| start..(start + length).min(PAGES))
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => some_pages().prop_map(Action::Map),
        1 => some_pages().prop_map(Action::MapFile),
        3 => some_pages().prop_map(Action::Unmap),
        1 => some_pages().prop_map(Action::FailToUnmap),
        2 => (some_pages(), some_pages())
            .prop_filter("the kernel refuses to move onto itself", |(old, new)| old.end <= new.start || new.end <= old.start)
            .prop_map(|(old, new)| Action::Move(old, new)),
    ]
}

/// Mapped pages: the call that made each, and its page within that call's result.
type Model = BTreeMap<u64, (u32, u64)>;

fn play_model(model: &mut Model, action: &Action, number: u32) {
    let clear = |model: &mut Model, pages: &Range<u64>| model.retain(|page, _| !pages.contains(page));
    match action {
        Action::Map(pages) => {
            clear(model, pages);
            model.extend(pages.clone().map(|page| (page, (number, page))));
        }
        Action::MapFile(pages) | Action::Unmap(pages) => clear(model, pages),
        Action::FailToUnmap(_) => {}
        Action::Move(old, new) => {
            let length = new.end - new.start;
            let known: Vec<u64> = old.clone().filter(|page| model.contains_key(page)).collect();
            clear(model, old);
            clear(model, new);
            let moved = known.iter().map(|page| page - old.start).filter(|offset| *offset < length);
            let grown = if known.is_empty() { 0..0 } else { old.end - old.start..length };
            for offset in moved.chain(grown) {
                model.insert(new.start + offset, (number, new.start + offset));
            }
        }
    }
}

fn play_on(table: &mut TrackedMappings, action: &Action, number: u32) {
    let length = |pages: &Range<u64>| (pages.end - pages.start) * PAGE;
    let fixed = |pages: &Range<u64>, flags| [page(pages.start), length(pages), 3, MAP_FIXED | flags, 0];
    match action {
        Action::Map(pages) => {
            let result = page(pages.start).cast_signed();
            play(table, Call::Map, fixed(pages, MAP_ANONYMOUS), result, number);
        }
        Action::MapFile(pages) => {
            play(table, Call::Map, fixed(pages, 0), page(pages.start).cast_signed(), number);
        }
        Action::Unmap(pages) => unmap(table, pages.start, pages.end - pages.start),
        Action::FailToUnmap(pages) => {
            play(table, Call::Unmap, [page(pages.start), length(pages), 0, 0, 0], FAILED, 0);
        }
        Action::Move(old, new) => remap(table, old.clone(), new.clone(), MREMAP_FIXED | 1, number),
    }
}

/// The model's pages as ranges; adjacent pages of one call are one range.
fn ranges_of(model: &Model) -> Vec<(u64, u64, u32)> {
    let mut ranges: Vec<(u64, u64, u32)> = Vec::new();
    for (&page, &(call, _)) in model {
        match ranges.last_mut() {
            Some((start, length, last)) if *start + *length == page && *last == call => *length += 1,
            _ => ranges.push((page, 1, call)),
        }
    }
    ranges
}

proptest! {
    #[test]
    fn ranges_are_what_a_map_of_single_pages_says(actions in proptest::collection::vec(action(), 1..40)) {
        let (mut table, mut model) = (table(), Model::new());
        for (number, action) in (1..).zip(&actions) {
            play_on(&mut table, action, number);
            play_model(&mut model, action, number);
            prop_assert_eq!(ranges(&table), ranges_of(&model), "after {:?}", action);
        }
    }
}
