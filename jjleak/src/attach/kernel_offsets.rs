//! Offsets of fields in this kernel's structures, for the BPF programs. Unknown offsets are 0; the log states what is lost.

use jjleak_common::settings::KernelOffsets as Fields;

use super::kernel_types::{
    BreakOffsets, Btf, KernelTypes, MappingOffsets, NamespaceOffsets, ProgramOffsets, ReturnInstanceOffsets,
    Structures, TaskOffsets, thread_pointer_offset,
};
use super::object::Following;
use super::{Error, Missing};

/// All offsets that the BPF programs use.
pub(super) struct KernelOffsets {
    returns: ReturnInstanceOffsets,
    thread_pointer: u64,
    mapping: MappingOffsets,
    program: ProgramOffsets,
    task: TaskOffsets,
    breaks: BreakOffsets,
}

impl KernelOffsets {
    /// Looks up the offsets. Fails if processes are to be followed and cannot be identified.
    pub(super) fn find(following: Following, follows_mappings: bool) -> Result<Self, Error> {
        let types = KernelTypes::read();
        let structures = Structures::of(&types);
        let btf = structures.known();
        Ok(Self {
            returns: return_instance_offsets(btf),
            thread_pointer: thread_pointer(btf),
            mapping: mapping_offsets(btf),
            program: btf.and_then(ProgramOffsets::find).unwrap_or_default(),
            task: task_offsets(&structures, following)?,
            breaks: if follows_mappings { break_offsets(btf) } else { BreakOffsets::default() },
        })
    }

    /// The offsets as the BPF programs use them.
    pub(super) const fn fields(&self) -> Fields {
        let Self { returns, thread_pointer, mapping, program, task, breaks } = self;
        let NamespaceOffsets { task_namespaces, mount_namespace, number } = program.namespaces;
        Fields {
            task_utask: returns.task_utask,
            utask_return_instances: returns.utask_return_instances,
            return_instance_stack: returns.stack,
            return_instance_address: returns.address,
            return_instance_next: returns.next,
            task_thread_pointer: *thread_pointer,
            vma_start: mapping.vma_start,
            vma_end: mapping.vma_end,
            vma_flags: mapping.vma_flags,
            vma_page_offset: mapping.vma_page_offset,
            vma_file: mapping.vma_file,
            file_inode: mapping.file_inode,
            inode_number: mapping.inode_number,
            inode_super: mapping.inode_super,
            inode_changed_s: mapping.inode_changed_s,
            inode_changed_ns: mapping.inode_changed_ns,
            super_device: mapping.super_device,
            unmapped_area_length: mapping.unmapped_area_length,
            program_file: program.file,
            program_path: program.path,
            task_namespaces,
            mount_namespace,
            mount_namespace_number: number,
            task_tgid: task.tgid,
            // Either is sufficient to find a process's memory map.
            task_mm: if task.mm == 0 { breaks.task_mm } else { task.mm },
            task_signal: task.signal,
            signal_live: task.signal_live,
            mm_brk: breaks.mm_brk,
        }
    }
}

/// Offsets of the fields that identify a process, required for following.
fn task_offsets(structures: &Structures<'_>, following: Following) -> Result<TaskOffsets, Error> {
    match (structures.known().and_then(TaskOffsets::find), structures) {
        (Some(offsets), _) => Ok(offsets),
        (None, _) if following == Following::Nobody => Ok(TaskOffsets::default()),
        (None, Structures::Untold) => Err(Missing::Btf.into()),
        (None, Structures::Known(_) | Structures::Unfamiliar) => Err(Missing::TaskFields.into()),
    }
}

/// Offsets of the fields that describe memory mappings. Without them, stacks end at newly mapped code until the user side has
/// scanned it.
fn mapping_offsets(btf: Option<&Btf<'_>>) -> MappingOffsets {
    btf.and_then(MappingOffsets::find).unwrap_or_else(|| {
        tracing::info!(
            "the kernel's offsets of memory mappings are unknown: stacks end at newly mapped code until the next scan"
        );
        MappingOffsets::default()
    })
}

/// Offsets of a process's program break; without them, `brk` is not traced.
fn break_offsets(btf: Option<&Btf<'_>>) -> BreakOffsets {
    btf.and_then(BreakOffsets::find).unwrap_or_else(|| {
        tracing::warn!("the kernel's offsets of the program break are unknown: brk is not traced");
        BreakOffsets::default()
    })
}

/// Offsets of the return addresses that return probes have replaced. Without them, stacks end at frames with return probes of
/// other tools.
fn return_instance_offsets(btf: Option<&Btf<'_>>) -> ReturnInstanceOffsets {
    btf.and_then(ReturnInstanceOffsets::find).unwrap_or_else(|| {
        tracing::info!("the kernel's return instances are unknown: stacks end at other tools' return probes");
        ReturnInstanceOffsets::default()
    })
}

/// Offset of a task's thread pointer.
fn thread_pointer(btf: Option<&Btf<'_>>) -> u64 {
    btf.and_then(thread_pointer_offset).unwrap_or_else(|| {
        tracing::info!(
            "stacks end at the heap frames of virtual threads in JVMs with generational ZGC: \
             the offset of a task's thread pointer (thread_struct::fsbase) is unknown"
        );
        0
    })
}
