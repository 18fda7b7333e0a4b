//! Loads the BPF object.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use aya::programs::{RawTracePoint, UProbe};
use aya::{Ebpf, EbpfLoader};
use jjleak_common::{live, names, stack};

use super::kernel_types::ReturnInstanceOffsets;
use super::{Error, Programs};

/// The object that `cargo xtask build` compiled; empty in a build without it.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/jjleak.bpf.o"));

/// How much the kernel side can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// log2 of the number of sets of live blocks; each holds [`live::WAYS`].
    pub live_sets_log2: u32,
    /// Live blocks beyond that.
    pub spill_entries: u32,
    /// log2 of the number of distinct stacks.
    pub stack_rows_log2: u32,
}

impl Default for Capacity {
    fn default() -> Self {
        Self {
            live_sets_log2: live::DEFAULT_SETS_LOG2,
            spill_entries: live::DEFAULT_SPILL_ENTRIES,
            stack_rows_log2: stack::DEFAULT_ROWS_LOG2,
        }
    }
}

/// Loads maps and programs.
pub(super) fn load(capacity: Capacity, programs: Programs, kernel_log: bool) -> Result<Ebpf, Error> {
    if OBJECT.is_empty() {
        return Err(Error::NoObject);
    }
    let log_level = if kernel_log { u8::MAX } else { 0 };
    let mut loader = EbpfLoader::new();
    loader
        // Task storage is not among the map types aya has a user-side type for; we need none.
        .allow_unsupported_maps()
        .override_global(names::LIVE_SETS_LOG2, &capacity.live_sets_log2, true)
        .override_global(names::STACK_ROWS_LOG2, &capacity.stack_rows_log2, true)
        .override_global(aya_log::LEVEL, &log_level, true)
        .map_max_entries(names::LIVE, 1 << capacity.live_sets_log2)
        .map_max_entries(names::SPILL, capacity.spill_entries)
        .map_max_entries(names::STACKS, 1 << capacity.stack_rows_log2);
    let namespace = fs::metadata("/proc/self/ns/pid").map_err(Error::Namespace)?;
    let (device, inode) = (namespace.dev(), namespace.ino());
    loader.override_global("PID_NAMESPACE_DEVICE", &device, true).override_global(
        "PID_NAMESPACE_INODE",
        &inode,
        true,
    );
    let offsets = return_instance_offsets();
    if let Some(offsets) = &offsets {
        loader
            .override_global("TASK_UTASK", &offsets.task_utask, true)
            .override_global("UTASK_RETURN_INSTANCES", &offsets.utask_return_instances, true)
            .override_global("RETURN_INSTANCE_STACK", &offsets.stack, true)
            .override_global("RETURN_INSTANCE_ADDRESS", &offsets.address, true)
            .override_global("RETURN_INSTANCE_NEXT", &offsets.next, true);
    }
    let mut ebpf = loader.load(OBJECT).map_err(|source| Error::Load(Box::new(source)))?;
    for name in programs.names() {
        uprobe(&mut ebpf, name)?.load().map_err(|error| Error::verify(name, error))?;
    }
    follow_exec(&mut ebpf)?;
    Ok(ebpf)
}

/// Where the kernel keeps return addresses that return probes have replaced. Without them, stacks end at frames that
/// other tools have put return probes on.
fn return_instance_offsets() -> Option<ReturnInstanceOffsets> {
    let offsets = ReturnInstanceOffsets::read(Path::new("/sys/kernel/btf/vmlinux"));
    match offsets {
        Ok(Some(offsets)) => Some(offsets),
        Ok(None) => {
            tracing::info!(
                "the kernel's return instances are unknown: stacks end at other tools' return probes"
            );
            None
        }
        Err(error) => {
            tracing::info!(%error, "cannot read the kernel's type information");
            None
        }
    }
}

/// Attaches the program that notices when a process replaces its program.
fn follow_exec(ebpf: &mut Ebpf) -> Result<(), Error> {
    let name = "process_exec";
    let program: &mut RawTracePoint = ebpf
        .program_mut(name)
        .and_then(|program| program.try_into().ok())
        .ok_or(Error::ObjectLacks { what: "raw tracepoint program", name })?;
    program.load().map_err(|error| Error::verify(name, error))?;
    program.attach("sched_process_exec").map_err(|error| Error::Exec(Box::new(error)))?;
    Ok(())
}

/// A uprobe program of the object.
pub(super) fn uprobe<'a>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut UProbe, Error> {
    ebpf.program_mut(name)
        .and_then(|program| program.try_into().ok())
        .ok_or(Error::ObjectLacks { what: "uprobe program", name })
}
