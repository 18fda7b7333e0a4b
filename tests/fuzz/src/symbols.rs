//! Symbols of hostile files, and the messages of the process that reads them.

use std::cell::RefCell;
use std::io::Write;
use std::path::Path;
use std::process;

use jjleak::processes::{Mapping, ModuleFiles, ModuleTable, Pid};
use jjleak::snapshot::{FoundMappings, RawStack};
use jjleak::symbolize::child::protocol::{Reply, Request, decode};
use jjleak::symbolize::{StackNames, Symbolizer};
use jjleak_common::stack::{StackFrame, StackStatus};
use memmap2::MmapOptions;

/// Folder whose files are in memory.
const IN_MEMORY: &str = "/dev/shm";
/// Number of files after which names are forgotten.
const FILES: u32 = 256;
/// Size of the segment with the code of the first inputs.
const CODE_BYTES: usize = 4096;
/// Distance in bytes between the addresses that are looked up, their number, and the number of parts of the code with so many.
const STEP: u64 = 0x40;
const ADDRESSES: usize = 16;
const PARTS: usize = CODE_BYTES / (STEP as usize * ADDRESSES);

/// Decodes messages. What can be decoded can be encoded.
pub(crate) fn protocol(data: &[u8]) {
    let _ = decode::<Request>(data);
    if let Ok(Reply::Symbols(symbols)) = decode(data) {
        assert!(symbols.len() <= data.len());
    }
}

/// Names addresses in a mapped file. Whatever becomes of the process that reads it, the next file has its turn.
pub(crate) fn symbols(data: &[u8]) {
    thread_local!(static NAMES: RefCell<(StackNames, u32)> = RefCell::new((names(), 0)));
    let mut file = tempfile::tempfile_in(IN_MEMORY).expect("there is room for a file");
    file.write_all(data).expect("there is room for its content");
    // SAFETY: nothing reads from the mapping.
    let Ok(mapping) = (unsafe { MmapOptions::new().len(CODE_BYTES).map_exec(&file) }) else { return };
    let pid = Pid::new(process::id()).expect("a PID is not 0");
    let mut modules = ModuleTable::default();
    let begin = mapping.as_ptr().addr() as u64;
    let mut mappings = Mapping::all(pid).expect("a process can read its own mappings");
    mappings.retain(|mapping| mapping.addresses.contains(&begin));
    modules.refresh(&mut ModuleFiles::default(), pid, &mappings);
    let first = data.len() % PARTS * ADDRESSES;
    let address = |index: usize| begin + index as u64 * STEP;
    // Innermost frames whose functions have the names of jjleak's sampler are left out. This one has none.
    let unknown = StackFrame::new(1, 0);
    let frames = [unknown]
        .into_iter()
        .chain((first..first + ADDRESSES).map(|index| StackFrame::new(address(index), 0)));
    let frames = frames.collect();
    let stack =
        RawStack { status: StackStatus::Complete, found: FoundMappings::default(), thread: 0, frames };
    NAMES.with_borrow_mut(|(names, row)| {
        if *row == FILES {
            (*names, *row) = (self::names(), 0);
        }
        let mut of_process = names.of_process(&modules);
        of_process.look_up([*row].into_iter(), |_| Some(&stack));
        let named = of_process.name(*row, || Some(stack.clone()));
        assert!(named.frames.len() > ADDRESSES);
        *row += 1;
    });
}

fn names() -> StackNames {
    let program = std::env::var_os("JJLEAK_FUZZ_CHILD").expect("JJLEAK_FUZZ_CHILD names a jjleak");
    StackNames::new(Symbolizer::in_child(Path::new(&program)))
}
