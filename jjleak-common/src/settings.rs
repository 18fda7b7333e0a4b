//! Constants of the BPF programs, which the loader sets: choices of the user side, and facts about the running kernel.
//!
//! They are read-only for the programs, so the verifier knows their values and skips code that cannot run.

use crate::live;
use crate::mapping::MappingKinds;
use crate::stack;

/// Range of sizes to account for, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeFilter {
    /// Minimum, inclusive.
    pub min: u64,
    /// Maximum, inclusive.
    pub max: u64,
}

impl Default for SizeFilter {
    fn default() -> Self {
        Self { min: 0, max: u64::MAX }
    }
}

/// Settings of the BPF programs: blocks to count, and processes to follow.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Range of sizes to account for, in bytes.
    pub min_size: u64,
    /// Its upper end, inclusive.
    pub max_size: u64,
    /// The user side's PID namespace if it is not the initial one: device of its `/proc/self/ns/pid`. Only processes of exactly
    /// this namespace can be recognized then (`bpf_get_ns_current_pid_tgid` supports no others).
    pub pid_namespace_device: u64,
    /// The inode of that file.
    pub pid_namespace_inode: u64,
    /// [`crate::sampling::draws_of_rate`], or 0.
    pub sample_draws: u64,
    /// [`crate::sampling::scale_of`] the sampling interval in bytes, or 0.
    pub sample_scale: u64,
    /// [`crate::sampling::certain_from`] the sampling interval in bytes.
    pub sample_certain_from: u64,
    /// Log2 of the number of sets of live blocks.
    pub live_sets_log2: u32,
    /// Log2 of the number of rows of the stack table that are used at first.
    pub stack_rows_log2: u32,
    /// Size of the ring buffer of frames.
    pub frame_bytes: u32,
    /// 1 if the user side is in the initial PID namespace. It then uses the kernel's own PIDs for all processes, whatever their
    /// namespaces.
    pub in_initial_pid_namespace: u8,
    /// 1 if children of profiled processes are profiled.
    pub follow_forks: u8,
    /// 1 if every process that executes a program is profiled, until the user side decides otherwise.
    pub adopt_execs: u8,
    /// 1 to sum up each stack's live blocks.
    pub combined: u8,
    /// 1 to make the allocating thread a part of a stack's identity.
    pub threads: u8,
    /// 1 to report every allocation and free.
    pub trace: u8,
    /// [`MappingKinds`] to report.
    pub mapping_kinds: u8,
    /// 1 if programs draw samples themselves: sizes of live blocks are [`crate::samples::Sampled`].
    pub announced: u8,
    /// 1 to walk each stack, also one that an earlier walk has found.
    pub walk_each: u8,
    /// Zeros.
    pub padding: [u8; 3],
}

impl Settings {
    /// Everything is counted, of processes that the user side names.
    pub const DEFAULT: Self = Self {
        min_size: 0,
        max_size: u64::MAX,
        pid_namespace_device: 0,
        pid_namespace_inode: 0,
        sample_draws: 0,
        sample_scale: 0,
        sample_certain_from: 0,
        live_sets_log2: live::sets_log2(live::DEFAULT_BLOCKS),
        stack_rows_log2: stack::first_rows_log2(stack::DEFAULT_STACKS),
        frame_bytes: stack::DEFAULT_FRAME_BYTES,
        in_initial_pid_namespace: 0,
        follow_forks: 0,
        adopt_execs: 0,
        combined: 0,
        threads: 0,
        trace: 0,
        mapping_kinds: MappingKinds::ANONYMOUS.0,
        announced: 0,
        walk_each: 0,
        padding: [0; 3],
    };
}

/// Offsets of fields in structures of the running kernel. An unknown one is 0.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KernelOffsets {
    /// `task_struct::utask`: with the next four, the return addresses that return probes have replaced.
    pub task_utask: u64,
    /// `uprobe_task::return_instances`
    pub utask_return_instances: u64,
    /// `return_instance::stack`
    pub return_instance_stack: u64,
    /// `return_instance::orig_ret_vaddr`
    pub return_instance_address: u64,
    /// `return_instance::next`
    pub return_instance_next: u64,
    /// The saved thread pointer (the FS base) in a task.
    pub task_thread_pointer: u64,
    /// `vm_area_struct::vm_start`: with the fields up to `unmapped_area_length`, what a mapping is of.
    pub vma_start: u64,
    /// `vm_area_struct::vm_end`
    pub vma_end: u64,
    /// `vm_area_struct::vm_flags`
    pub vma_flags: u64,
    /// `vm_area_struct::vm_pgoff`
    pub vma_page_offset: u64,
    /// `vm_area_struct::vm_file`
    pub vma_file: u64,
    /// `file::f_inode`
    pub file_inode: u64,
    /// `inode::i_ino`
    pub inode_number: u64,
    /// `inode::i_sb`
    pub inode_super: u64,
    /// Seconds of the inode's time of change.
    pub inode_changed_s: u64,
    /// Nanoseconds of the inode's time of change.
    pub inode_changed_ns: u64,
    /// `super_block::s_dev`
    pub super_device: u64,
    /// `vm_unmapped_area_info::length`
    pub unmapped_area_length: u64,
    /// `linux_binprm::file`: with the next, the program of an `exec`.
    pub program_file: u64,
    /// `linux_binprm::interp`
    pub program_path: u64,
    /// `task_struct::nsproxy`: with the next two, a task's mount namespace.
    pub task_namespaces: u64,
    /// `nsproxy::mnt_ns`
    pub mount_namespace: u64,
    /// The number in a mount namespace.
    pub mount_namespace_number: u64,
    /// `task_struct::tgid`: with the next three, the process of a task.
    pub task_tgid: u64,
    /// `task_struct::mm`
    pub task_mm: u64,
    /// `task_struct::signal`
    pub task_signal: u64,
    /// `signal_struct::live`
    pub signal_live: u64,
    /// `mm_struct::brk`
    pub mm_brk: u64,
}

impl KernelOffsets {
    /// No structure is known.
    pub const UNKNOWN: Self = Self {
        task_utask: 0,
        utask_return_instances: 0,
        return_instance_stack: 0,
        return_instance_address: 0,
        return_instance_next: 0,
        task_thread_pointer: 0,
        vma_start: 0,
        vma_end: 0,
        vma_flags: 0,
        vma_page_offset: 0,
        vma_file: 0,
        file_inode: 0,
        inode_number: 0,
        inode_super: 0,
        inode_changed_s: 0,
        inode_changed_ns: 0,
        super_device: 0,
        unmapped_area_length: 0,
        program_file: 0,
        program_path: 0,
        task_namespaces: 0,
        mount_namespace: 0,
        mount_namespace_number: 0,
        task_tgid: 0,
        task_mm: 0,
        task_signal: 0,
        signal_live: 0,
        mm_brk: 0,
    };
}

// SAFETY: integers only, and no implicit padding.
#[cfg(feature = "user")]
unsafe impl aya::Pod for Settings {}
// SAFETY: integers only.
#[cfg(feature = "user")]
unsafe impl aya::Pod for KernelOffsets {}

const _: () = assert!(size_of::<Settings>() == 7 * 8 + 3 * 4 + 8 + 4);
const _: () = assert!(size_of::<KernelOffsets>() == 28 * 8);
