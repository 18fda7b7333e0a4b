//! Passes offsets of fields in this kernel's structures to the BPF object. Unknown offsets are 0; the log states what is lost.

use aya::EbpfLoader;

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

    /// Returns true if processes can be identified.
    pub(super) const fn knows_tasks(&self) -> bool {
        self.task.tgid != 0
    }

    /// Sets the object's globals.
    pub(super) fn apply<'a>(&'a self, loader: &mut EbpfLoader<'a>) {
        let Self { returns, mapping, program, task, breaks, .. } = self;
        let ProgramOffsets { file, path, namespaces } = program;
        let NamespaceOffsets { task_namespaces, mount_namespace, number } = namespaces;
        // Either is sufficient to find a process's memory map.
        let mm = if task.mm == 0 { &breaks.task_mm } else { &task.mm };
        let globals = [
            ("TASK_UTASK", &returns.task_utask),
            ("UTASK_RETURN_INSTANCES", &returns.utask_return_instances),
            ("RETURN_INSTANCE_STACK", &returns.stack),
            ("RETURN_INSTANCE_ADDRESS", &returns.address),
            ("RETURN_INSTANCE_NEXT", &returns.next),
            ("TASK_THREAD_POINTER", &self.thread_pointer),
            ("VMA_START", &mapping.vma_start),
            ("VMA_END", &mapping.vma_end),
            ("VMA_FLAGS", &mapping.vma_flags),
            ("VMA_PAGE_OFFSET", &mapping.vma_page_offset),
            ("VMA_FILE", &mapping.vma_file),
            ("FILE_INODE", &mapping.file_inode),
            ("INODE_NUMBER", &mapping.inode_number),
            ("INODE_SUPER", &mapping.inode_super),
            ("INODE_CHANGED_S", &mapping.inode_changed_s),
            ("INODE_CHANGED_NS", &mapping.inode_changed_ns),
            ("UNMAPPED_AREA_LENGTH", &mapping.unmapped_area_length),
            ("SUPER_DEVICE", &mapping.super_device),
            ("PROGRAM_FILE", file),
            ("PROGRAM_PATH", path),
            ("TASK_NAMESPACES", task_namespaces),
            ("MOUNT_NAMESPACE", mount_namespace),
            ("MOUNT_NAMESPACE_NUMBER", number),
            ("TASK_TGID", &task.tgid),
            ("TASK_MM", mm),
            ("MM_BRK", &breaks.mm_brk),
            ("TASK_SIGNAL", &task.signal),
            ("SIGNAL_LIVE", &task.signal_live),
        ];
        for (name, offset) in globals {
            loader.override_global(name, offset, true);
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
            "this kernel does not tell what a process maps: stacks through new code end there for a while"
        );
        MappingOffsets::default()
    })
}

/// Offsets of a process's program break; without them, `brk` is not traced.
fn break_offsets(btf: Option<&Btf<'_>>) -> BreakOffsets {
    btf.and_then(BreakOffsets::find).unwrap_or_else(|| {
        tracing::warn!("this kernel does not tell where a process's break is: brk is not followed");
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
            "frames of virtual threads in the heap of JVMs with generational ZGC are not followed: \
             the kernel does not tell where a task keeps its thread pointer (thread_struct::fsbase)"
        );
        0
    })
}
