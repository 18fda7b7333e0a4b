//! Programs at tracepoints of the kernel: what they report, and when they are needed.

use std::error::Error as _;

use aya::Ebpf;
use aya::programs::RawTracePoint;
use jjleak_common::settings::KernelOffsets;

use super::{Error, Following, Settings};

/// A program at a tracepoint.
struct Hook {
    program: &'static str,
    tracepoint: &'static str,
    need: Need,
}

/// Condition for a program to run.
enum Need {
    Always,
    /// If the kernel has the tracepoint. The warning says what is worse without it.
    IfPossible(&'static str),
    /// If the kernel side can tell which process a task belongs to.
    WithTasks,
    /// If other processes than the named ones are profiled.
    Following,
    /// If page faults are reported.
    Faults,
    /// The same, if the kernel has the tracepoint.
    FaultsIfPossible(&'static str),
}

/// The programs, in the order in which they are attached. The records that they write are those of [`super::Hints`]. Programs
/// for system calls that map memory are in [`super::mapping_events`].
const HOOKS: [Hook; 8] = [
    Hook {
        program: "area_placed",
        tracepoint: "vm_unmapped_area",
        need: Need::IfPossible(
            "this kernel does not report new code mappings: where one library replaces another, stacks and names can be \
             wrong for up to a second",
        ),
    },
    Hook { program: "process_exec", tracepoint: "sched_process_exec", need: Need::Always },
    Hook { program: "thread_exit", tracepoint: "sched_process_exit", need: Need::Always },
    Hook { program: "process_fork", tracepoint: "sched_process_fork", need: Need::WithTasks },
    Hook { program: "process_exit", tracepoint: "sched_process_exit", need: Need::Following },
    Hook { program: "fault_of_program", tracepoint: "page_fault_user", need: Need::Faults },
    Hook { program: "fault_of_kernel", tracepoint: "page_fault_kernel", need: Need::Faults },
    Hook {
        program: "pages_moved",
        tracepoint: "vm_unmapped_area",
        need: Need::FaultsIfPossible(
            "this kernel does not report new mappings: pages that mremap moves count as filled by the kernel",
        ),
    },
];

/// Attaches the programs that are needed.
pub(super) fn attach(ebpf: &mut Ebpf, settings: &Settings, offsets: &KernelOffsets) -> Result<(), Error> {
    for Hook { program, tracepoint, need } in HOOKS {
        match need {
            Need::WithTasks if offsets.task_tgid == 0 => {}
            Need::Following if settings.following == Following::Nobody => {}
            Need::Faults | Need::FaultsIfPossible(_) if !settings.faults => {}
            Need::Always | Need::WithTasks | Need::Following | Need::Faults => {
                attach_one(ebpf, program, tracepoint)?;
            }
            Need::IfPossible(warning) | Need::FaultsIfPossible(warning) => {
                if let Err(error) = attach_one(ebpf, program, tracepoint) {
                    tracing::warn!("{warning}");
                    tracing::info!(%error, source = error.source(), "the reason");
                }
            }
        }
    }
    Ok(())
}

fn attach_one(ebpf: &mut Ebpf, name: &'static str, tracepoint: &'static str) -> Result<(), Error> {
    let program: &mut RawTracePoint = ebpf
        .program_mut(name)
        .and_then(|program| program.try_into().ok())
        .ok_or(Error::ObjectLacks { what: "raw tracepoint program", name })?;
    program.load().map_err(|error| Error::verify(name, error))?;
    let attached = program.attach(tracepoint);
    attached.map_err(|error| Error::Tracepoint { name: tracepoint, source: Box::new(error) })?;
    Ok(())
}
