//! Contents of the BPF maps of a running jjleak, read from outside.

use std::collections::BTreeSet;
use std::fs;

use aya::maps::{Array, Map, MapData, MapInfo};
use aya::programs::loaded_programs;
use jjleak_common::live::{Key, LiveSet, WAYS};
use jjleak_common::process::{ProcessRow, ProcessState};
use jjleak_common::stack::{DEFAULT_STACKS, StackRow, first_rows_log2};

/// A value of a map, reinterpreted from its bytes.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Value<T>(T);

// SAFETY: only used for the ABI's types: integers without padding, for which every bit pattern is valid.
unsafe impl<T: Copy + 'static> aya::Pod for Value<T> {}

/// Number of entries in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InUse {
    pub(crate) processes: usize,
    pub(crate) blocks: usize,
    pub(crate) stacks: usize,
}

impl InUse {
    /// Reads those of the jjleak with this PID.
    pub(crate) fn by(pid: u32) -> Self {
        let rows = values::<ProcessRow>(pid, "PROCESSES");
        let sets = values::<LiveSet>(pid, "LIVE");
        let stacks = values::<StackRow>(pid, "STACKS");
        Self {
            processes: rows.iter().filter(|row| row.state != ProcessState::Free as u32).count(),
            blocks: sets.iter().map(|set| (0..WAYS).filter(|way| set.keys[*way] != 0).count()).sum(),
            stacks: stacks.iter().filter(|row| row.hash != 0).count(),
        }
    }
}

/// Number of used rows of the stack table of the jjleak with this PID.
pub(crate) fn stacks(pid: u32) -> usize {
    values::<StackRow>(pid, "STACKS").iter().filter(|row| row.hash != 0).count()
}

/// Number of rows that the stack table of the jjleak with this PID uses for stacks.
pub(crate) fn stack_rows(pid: u32) -> usize {
    let doublings = values::<u32>(pid, "STACK_DOUBLINGS")[0];
    1 << (first_rows_log2(DEFAULT_STACKS) + doublings)
}

/// Address and size of every live block in the table of the jjleak with this PID, except those in the spill.
pub(crate) fn blocks(pid: u32) -> Vec<(u64, u64)> {
    let in_set = |set: LiveSet| {
        (0..WAYS)
            .filter(move |way| set.keys[*way] != 0)
            .map(move |way| (Key(set.keys[way]).address(), set.sizes[way]))
    };
    values::<LiveSet>(pid, "LIVE").into_iter().flat_map(in_set).collect()
}

/// All values of an array that the programs of a process use.
fn values<T: Copy + 'static>(pid: u32, name: &str) -> Vec<T> {
    let named = |id: &u32| MapInfo::from_id(*id).is_ok_and(|info| info.name_as_str() == Some(name));
    let id = maps(pid).into_iter().find(named).unwrap_or_else(|| panic!("process {pid} has no map {name}"));
    let map = Map::Array(MapData::from_id(id).unwrap());
    let array: Array<_, Value<T>> = Array::try_from(map).unwrap();
    array.iter().map(|value| value.unwrap().0).collect()
}

/// IDs of the maps that the programs of a process use.
fn maps(pid: u32) -> BTreeSet<u32> {
    let programs: BTreeSet<u32> = fs::read_dir(format!("/proc/{pid}/fdinfo"))
        .unwrap()
        .filter_map(|entry| {
            let text = fs::read_to_string(entry.ok()?.path()).ok()?;
            text.lines().find_map(|line| line.strip_prefix("prog_id:"))?.trim().parse().ok()
        })
        .collect();
    let loaded = loaded_programs().filter_map(Result::ok).filter(|program| programs.contains(&program.id()));
    loaded.filter_map(|program| program.map_ids().ok().flatten()).flatten().collect()
}
