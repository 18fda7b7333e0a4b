//! Stacks that a program creates itself: each begins at the entry function of its fibre.

use jjleak::render::json::Document;

use crate::support::compile;
use crate::support::jjleak::Ended;
use crate::support::privilege::require_bpf;

/// Callers of the allocation of each size, from the allocation function's caller on, except frames whose names depend on the C
/// library; and the outermost frame.
const CALLERS: [(u64, &[&str], &str); 4] = [
    (4001, &["first", "run"], "__start_context"),
    (4002, &["second", "run"], "__start_context"),
    (4003, &["at_exit"], "without_caller"),
    (4004, &["third", "without_caller"], "without_caller"),
];

fn assert_begins_in_fibre(report: &Document, libraries_are_named: bool) {
    for (bytes, callers, root) in CALLERS {
        let stack = report.stacks.iter().find(|stack| stack.allocated.bytes == bytes).unwrap();
        let names: Vec<_> = stack.frames[1..].iter().map(|frame| frame.symbol.as_str()).collect();
        assert_eq!(stack.status, "complete", "{stack:#?}");
        assert_eq!(&names[..callers.len()], callers, "{stack:#?}");
        assert!(!names.contains(&"main"), "nobody has called it: {stack:#?}");
        if libraries_are_named {
            assert_eq!(names.last(), Some(&root), "{stack:#?}");
        }
    }
}

#[test]
fn a_stack_begins_where_its_fibre_does() {
    require_bpf!();
    for (flags, libraries_are_named) in [(&["-g"][..], false), (&["-g", "-static"], true)] {
        let program = compile::fibres(flags);

        let report = Ended::of(["--format", "json", "--", program.to_str().unwrap()]).assert_done().report();

        assert_begins_in_fibre(&report, libraries_are_named);
    }
}
