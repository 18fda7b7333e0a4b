//! Processes: identity, memory mappings, end.
//!
//! In: a PID or a command line. Out: a [`Process`], its [`Mapping`]s, and a [`ModuleTable`] that keeps mapped files for as long
//! as their addresses may need symbols.

mod cgroup_mounts;
mod cpu;
mod debug_file;
mod descriptors;
mod error;
mod exit;
mod exports;
mod file_sources;
mod group_memory;
mod headers;
mod identity;
mod launch;
mod layout;
mod mapped_file;
mod maps;
mod memory;
mod module;
mod modules;
pub mod opener;
mod own_children;
mod prefetch;
mod pressure;
mod programs;
mod regions;
mod resident;
mod root;
mod running;
mod saved_mappings;
mod starts;
mod threads;
mod wanted;
mod width;

pub use cpu::cpu_time;
pub use descriptors::raise_descriptor_limit;
pub use error::Error;
pub use exit::ExitWatch;
pub use file_sources::{Artifact, FileSources, FileStore};
pub use group_memory::GroupMemory;
pub use identity::{Credentials, Pid, Process};
pub use launch::{Launch, Progress, Running, Streams};
pub use maps::{FileId, FileVersion, Mapping, parse_maps};
pub use memory::MemoryLimit;
pub use module::{Module, ModuleFiles, SymbolFiles};
pub use modules::{Located, ModuleId, ModuleTable, Unopened};
pub use own_children::{forget_own_child, is_own_child, note_own_child};
pub use prefetch::MAX_EXPECTED;
pub use pressure::ControlGroup;
pub use programs::ProgramFiles;
pub use resident::{Resident, ResidentMemory};
pub use root::{Root, mount_namespace};
pub use running::{pids, running};
pub use saved_mappings::SavedMappings;
pub use starts::{Started, Starts};
pub use threads::{has_call_filter, is_alive, living_thread, thread_name};
pub use wanted::Wanted;
pub use width::Narrow;
