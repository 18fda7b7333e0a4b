//! Stacks around a page that is not present at first.

use crate::support::accounts::assert_nothing_lost;
use crate::support::compile;
use crate::support::jjleak::Ended;
use crate::support::privilege::require_bpf;

/// Size and number of the blocks that the fixture allocates with the page absent, and with it present.
const BLOCKS: [(u64, u64); 2] = [(2001, 1), (2002, 8)];

#[test]
fn a_page_of_the_stack_that_was_absent_once_cuts_no_later_stack() {
    require_bpf!();
    let program = compile::absent().as_os_str();

    let ended = Ended::of(["--format".as_ref(), "json".as_ref(), "--".as_ref(), program]).assert_done();

    let report = ended.report();
    assert_nothing_lost(&report);
    let incomplete: Vec<_> = report.stacks.iter().filter(|stack| stack.status != "complete").collect();
    assert!(incomplete.is_empty(), "not complete: {incomplete:#?}");
    for (size, blocks) in BLOCKS {
        let stacks = report.stacks.iter().filter(|it| it.allocated.bytes == it.allocated.objects * size);
        let of_size: Vec<_> = stacks.collect();
        assert!(of_size.iter().all(|stack| stack.frames.iter().any(|frame| frame.symbol == "main")));
        assert_eq!(of_size.iter().map(|stack| stack.allocated.objects).sum::<u64>(), blocks, "of {size}");
    }
}
