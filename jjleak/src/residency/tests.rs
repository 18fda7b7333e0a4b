use super::*;

const AT: u64 = 0x7f00_0000_0000;
const PLAIN: Filled = Filled { around: false, huge: false, by_zeros: true };

fn fault(page: u64, stack: u32, is_write: bool) -> Fault {
    Fault { time_ns: 5 << 30, page: AT + page * PAGE, is_write, was_present: false, stack }
}

fn written(page: u64, stack: u32) -> Event {
    Event::Fault(fault(page, stack, true))
}

fn read(page: u64, stack: u32) -> Event {
    Event::Fault(fault(page, stack, false))
}

fn part(pages: u64, filled: Filled) -> Part {
    Part { range: AT..AT + pages * PAGE, filled }
}

/// Rows of the stacks that own the pages; `None` for nobody.
fn owners(touched: &TouchedPages, part: &Part, states: &[PageState]) -> Vec<Option<u32>> {
    let mut owners = Vec::new();
    touched.attribute(part, states, |owner| {
        owners.push(match owner {
            Owner::Stack(row, _) => Some(row),
            Owner::Nobody => None,
        });
    });
    owners
}

use PageState::{Absent, Resident, Swapped};

#[test]
fn a_page_belongs_to_the_stack_that_touched_it_last_as_long_as_it_is_resident() {
    let mut touched = TouchedPages::default();
    for event in [written(0, 7), written(1, 8), written(2, 9), written(1, 7)] {
        touched.record(event);
    }
    let states = [Resident, Resident, Absent, Swapped];
    assert_eq!(owners(&touched, &part(4, PLAIN), &states), [Some(7), Some(7)]);
    assert_eq!(touched.faults().collect::<Vec<_>>(), [(7, 2), (8, 1), (9, 1)]);
}

#[test]
fn pages_that_were_resident_before_count_once_they_were_given_back() {
    let mut touched = TouchedPages::default();
    touched.add_resident(AT, &[Resident, Resident, Resident, Absent]);
    touched.record(written(1, 7));
    let states = [Resident, Resident, Absent, Absent];
    let mut count = 0;
    let released = touched.attribute(&part(4, PLAIN), &states, |_| count += 1);
    assert_eq!((released, count), (1, 0));
    touched.forget_absent(AT, &states, 6 << 30);
    touched.record(written(2, 8));
    assert_eq!(owners(&touched, &part(4, PLAIN), &[Resident, Resident, Resident, Absent]), [Some(8)]);
}

#[test]
fn a_copy_of_a_page_is_of_the_stack_that_touched_the_page() {
    let mut touched = TouchedPages::default();
    touched.record(written(0, 7));
    touched.record(read(1, 7));
    for page in [0, 1] {
        touched.record(Event::Fault(Fault { was_present: true, ..fault(page, 8, true) }));
    }
    assert_eq!(owners(&touched, &part(2, PLAIN), &[Resident; 2]), [Some(7), Some(8)], "one was of zeros");
    assert_eq!(touched.faults().collect::<Vec<_>>(), [(7, 2), (8, 1)]);
}

#[test]
fn pages_without_a_fault_belong_to_nobody() {
    let mut touched = TouchedPages::default();
    touched.record(written(0, 7));
    assert_eq!(owners(&touched, &part(2, PLAIN), &[Resident; 2]), [Some(7), None]);
}

#[test]
fn pages_of_a_huge_page_belong_to_the_fault_that_made_it() {
    let mut touched = TouchedPages::default();
    touched.record(written(300, 7));
    let huge = Filled { huge: true, ..PLAIN };
    let owned = owners(&touched, &part(600, huge), &[Resident; 600]);
    assert_eq!(owned[..512], [Some(7); 512]);
    assert_eq!(owned[512..], [None; 88], "another huge page");
}

#[test]
fn a_fault_on_a_file_maps_its_neighbours() {
    let mut touched = TouchedPages::default();
    touched.record(read(20, 7));
    let file = Filled { around: true, huge: false, by_zeros: false };
    let owned = owners(&touched, &part(40, file), &[Resident; 40]);
    assert_eq!(owned.iter().filter(|owner| owner.is_some()).count(), FAULT_AROUND);
    assert!(owned[16].is_some() && owned[31].is_some() && owned[15].is_none() && owned[32].is_none());
}

#[test]
fn memory_that_was_only_read_is_the_page_of_zeros() {
    let mut touched = TouchedPages::default();
    touched.record(read(0, 7));
    touched.record(read(1, 7));
    touched.record(written(1, 8));
    assert_eq!(owners(&touched, &part(2, PLAIN), &[Resident; 2]), [Some(8)]);
    let swapped = Filled { by_zeros: false, ..PLAIN };
    assert_eq!(owners(&touched, &part(2, swapped), &[Resident; 2]), [Some(7), Some(8)]);
}

#[test]
fn a_page_that_was_given_back_does_not_keep_its_stack() {
    let mut touched = TouchedPages::default();
    touched.record(written(0, 7));
    touched.forget_absent(AT, &[Absent], 1 << 30);
    assert_eq!(owners(&touched, &part(1, PLAIN), &[Resident]), [Some(7)], "the fault is too new");
    touched.forget_absent(AT, &[Absent], 6 << 30);
    assert_eq!(owners(&touched, &part(1, PLAIN), &[Resident]), [None]);
    assert!(touched.touched.is_empty());
}

#[test]
fn pages_that_are_moved_keep_their_stack() {
    let mut touched = TouchedPages::default();
    touched.add_resident(AT + PAGE, &[Resident]);
    for event in [written(0, 7), written(2, 8), written(3, 9)] {
        touched.record(event);
    }
    let to = AT + 511 * PAGE;
    touched.record(Event::Move(Move { from: AT, to, pages: 3 }));
    let now = Part { range: to..to + 3 * PAGE, filled: PLAIN };
    assert_eq!(owners(&touched, &now, &[Resident; 3]), [Some(7), Some(8)], "one was resident before");
    assert_eq!(owners(&touched, &part(4, PLAIN), &[Resident; 4]), [None, None, None, Some(9)]);
}

#[test]
fn of_a_sparse_range_only_blocks_with_touched_pages_are_looked_at() {
    let mut touched = TouchedPages::default();
    for page in [1, 2, 600, 5_000_000] {
        touched.record(written(page, 7));
    }
    let at = |page: u64| AT + page * PAGE;
    let found = touched.ranges_in(&(at(2)..at(1 << 22)));
    assert_eq!(found, [at(2)..at(512), at(512)..at(1024)]);
}

#[test]
fn room_is_bounded_and_what_has_none_is_counted() {
    let mut touched = TouchedPages::default();
    for block in 0..=MAX_BLOCKS as u64 {
        touched.record(written(block * PAGES_OF_BLOCK as u64, 7));
    }
    assert_eq!((touched.touched.len(), touched.lost()), (MAX_BLOCKS, 1));
}

#[test]
fn times_are_right_to_some_milliseconds() {
    let touch = Touch::of(&Fault { time_ns: 123_456_789_012_345, ..fault(0, 1, false) });
    assert!(touch.is_read() && 123_456_789_012_345 - touch.time_ns() < 34_000_000);
}
