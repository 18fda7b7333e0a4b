use std::time::Duration;

use super::*;
use crate::memory::{Row, Scan};
use crate::processes::Pid;

const MIB: u64 = 1 << 20;

fn process(pid: u32, comm: &str) -> Process {
    Process {
        pid: Pid::new(pid).unwrap(),
        start_time: 1,
        comm: comm.to_owned(),
        exe: "/usr/bin/program".into(),
        container_pid: None,
    }
}

/// A scan with these rows, in MiB.
fn scan(rows: &[(Kind, &str, u64)]) -> ProcessScan {
    let rows: Vec<_> = rows
        .iter()
        .map(|(kind, name, mib)| Row { kind: *kind, name: (*name).to_owned(), resident: mib * MIB })
        .collect();
    let resident = rows.iter().map(|row| row.resident).sum();
    ProcessScan {
        scan: Scan { resident, proportional: resident, swapped: 0, rows },
        jvm: None,
        malloc: None,
        arenas: None,
        cpus: 4,
        threads: 4,
        page_tables: 0,
        limit: None,
        control_group: None,
        unknown: Vec::new(),
    }
}

fn report<'a>(
    process: &'a Process,
    scan: &'a ProcessScan,
    first: Option<(&'a ProcessScan, Duration)>,
) -> MemoryReport<'a> {
    MemoryReport { process, taken_at: Timestamp::UNIX_EPOCH, scan, first }
}

const ELAPSED: Duration = Duration::from_secs(10);

#[test]
fn the_process_that_grows_is_the_first_line_of_a_table_with_its_cause() {
    let (large, grows) = (process(10, "large"), process(20, "grows\u{202e}"));
    let first = scan(&[(Kind::File, "/a", 5), (Kind::Shared, "/dev/shm/a", 10)]);
    let last = scan(&[(Kind::File, "/a", 5), (Kind::Shared, "/dev/shm/a", 90)]);
    let steady = scan(&[(Kind::File, "/a", 300), (Kind::File, "/b", 300), (Kind::Anonymous, "", 400)]);
    let reports =
        [report(&large, &steady, Some((&steady, ELAPSED))), report(&grows, &last, Some((&first, ELAPSED)))];
    let text = table(&reports, Some(ELAPSED), 3);
    insta::assert_snapshot!(text);
    let html = html_table(&reports, Some(ELAPSED), 3);
    assert!(html.contains("cause: shared memory") && html.contains("3 more processes could not be read"));
    assert!(!text.contains('\u{202e}') && !html.contains('\u{202e}'));
}

#[test]
fn a_page_has_the_cause_first_and_escapes_names() {
    let process = process(7, "<script>");
    let first = scan(&[(Kind::Shared, "/dev/shm/<b>", 10)]);
    let last = scan(&[(Kind::Shared, "/dev/shm/<b>", 90)]);
    let page = html(&report(&process, &last, Some((&first, ELAPSED))));
    let (cause, rows) =
        (page.find("cause: shared memory").unwrap(), page.find("Resident memory by use").unwrap());
    assert!(cause < rows && page.contains("+80.0 MiB"), "{page}");
    assert!(page.contains("&lt;script&gt;") && !page.contains("<script"), "{page}");
    assert!(page.contains("/dev/shm/&lt;b&gt;"), "{page}");
}
