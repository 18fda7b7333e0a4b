//! The allocators of the profiled process: finds them and attaches to them.

use std::collections::{BTreeSet, HashSet};
use std::io::ErrorKind;
use std::path::Path;

use jjleak_common::process::ImageId;

use super::Failure;
use super::code::CodeFollower;
use super::failure::{OTHER, allowance};
use crate::allocators::{self, ModuleAllocators, ProfiledAllocator, find_sites};
use crate::attach::{Attachment, Target};
use crate::collect::Collector;
use crate::processes::{FileId, Mapping, Module, ModuleId, ModuleTable, Pid, Unopened};
use crate::symbolize::{NamedStack, StackNames};

/// The allocators of a process, attached to as its modules become known.
pub(super) struct Allocators {
    pid: Pid,
    modules: ModuleTable,
    code: CodeFollower,
    /// Files that have been looked at. Probes belong to the file: they outlive its mapping and an `exec`.
    seen: HashSet<FileId>,
    names: StackNames,
    profiled: Vec<Profiled>,
}

/// An allocator with probes in it.
struct Profiled {
    file: FileId,
    module: String,
    family: &'static str,
    functions: usize,
}

impl Allocators {
    pub(super) fn none(pid: Pid) -> Self {
        Self {
            pid,
            modules: ModuleTable::default(),
            code: CodeFollower::new(pid),
            seen: HashSet::new(),
            names: StackNames::default(),
            profiled: Vec::new(),
        }
    }

    /// Attaches to the allocators in modules that were not known yet. `mappings` are those of `image`, `thread`
    /// is one of its threads.
    pub(super) fn attach_new(
        &mut self,
        image: ImageId,
        thread: Pid,
        mappings: &[Mapping],
        attachment: &mut Attachment,
    ) -> Result<(), Failure> {
        let new = self.modules.refresh(thread, mappings);
        // First what stacks need, for the process runs on: looking for allocators takes longer.
        self.code.follow(image, mappings, &self.modules, attachment)?;
        for id in new {
            if self.seen.insert(self.modules.get(id).id) {
                self.attach_module(id, thread, attachment)?;
            }
        }
        let is_profiled = |module: &Module| self.profiled.iter().any(|profiled| profiled.file == module.id);
        let profiled = self.modules.iter().filter(|(_, module)| is_profiled(module));
        let text: Vec<_> = profiled.filter_map(|(id, _)| self.modules.text(id)).collect();
        Ok(attachment.set_allocator_text(image, &text)?)
    }

    /// The process has replaced its program: what it mapped before is gone.
    pub(super) fn forget_modules(&mut self) {
        self.modules = ModuleTable::default();
    }

    /// The stack in a row of the kernel's table, with names.
    pub(super) fn name_stack(&mut self, row: u32, collector: &Collector) -> NamedStack {
        self.names.name(row, &self.modules, || collector.stack(row))
    }

    /// Fails when there is nothing to count, or counting would miss what matters.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let pid = self.pid;
        let supported: BTreeSet<_> = allocators::profiled_families().collect();
        let supported = supported.into_iter().collect::<Vec<_>>().join(", ");
        if self.profiled.is_empty() {
            let mut what = format!("process {pid} maps no allocator that jjleak knows");
            let mut remedy = format!(
                "profile a process that uses {supported}; a static executable needs its symbol table"
            );
            if let Some(Unopened { path, error }) = self.modules.unopened().next() {
                let (number, path) = (self.modules.unopened().count(), path.display());
                what = format!("{what}; {number} of its files cannot be opened, such as {path}: {error}");
                if error.kind() == ErrorKind::PermissionDenied {
                    allowance().clone_into(&mut remedy);
                }
            }
            return Err(Failure::new(OTHER, what, remedy));
        }
        Ok(())
    }

    /// What is being counted, for the user.
    pub(super) fn describe(&self) -> String {
        let parts = self.profiled.iter().map(|Profiled { module, family, functions, .. }| {
            format!("{functions} functions of {family} in {module}")
        });
        parts.collect::<Vec<_>>().join(", ")
    }

    fn attach_module(
        &mut self,
        id: ModuleId,
        thread: Pid,
        attachment: &mut Attachment,
    ) -> Result<(), Failure> {
        let module = self.modules.get(id);
        let name = base_name(&module.path);
        let found = module
            .read()
            .map_err(|error| error.to_string())
            .and_then(|elf| find_sites(&elf).map_err(|error| error.to_string()));
        let allocators = match found {
            Ok(ModuleAllocators { profiled, unknown_malloc }) => {
                if unknown_malloc {
                    tracing::warn!(
                        "{name} defines its own malloc: what it does not pass on to another is not counted"
                    );
                }
                profiled
            }
            Err(error) => {
                tracing::warn!("{name}: cannot look for allocators: {error}");
                return Ok(());
            }
        };
        for allocator in allocators {
            attachment.attach(thread, &targets(module, &allocator))?;
            for site in &allocator.sites {
                self.names.set_function(module, site.offset(), &site.names.join("/"));
            }
            for missing in &allocator.missing {
                tracing::debug!("{name}: {} is not profiled: {}", missing.name, missing.reason);
            }
            self.profiled.push(Profiled {
                file: module.id,
                module: name.clone(),
                family: allocator.family,
                functions: allocator.sites.iter().map(|site| site.names.len()).sum(),
            });
        }
        Ok(())
    }
}

fn targets(module: &Module, allocator: &ProfiledAllocator) -> Vec<Target> {
    let file = module.stable_path();
    for site in &allocator.sites {
        tracing::info!(
            "{} at file offset {:#x} ({:?}, {:+})",
            site.names.join("/"),
            site.offset(),
            site.placement.stepping,
            site.placement.delta,
        );
    }
    allocator.sites.iter().map(|site| Target { file: file.clone(), site: site.clone() }).collect()
}

fn base_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_process_without_an_allocator_is_told_from_one_whose_files_cannot_be_opened() {
        let pid = Pid::new(std::process::id()).unwrap();
        let failure = |allocators: &Allocators| allocators.check().unwrap_err().to_string();
        let mut allocators = Allocators::none(pid);
        assert!(failure(&allocators).ends_with("maps no allocator that jjleak knows"));
        let gone = Mapping {
            addresses: 0..4096,
            executable: true,
            file_offset: 0,
            file: Some(FileId { device: (0, 0), inode: 1 }),
            path: PathBuf::from("/nonexistent/libc.so.6"),
            deleted: false,
        };
        allocators.modules.refresh(pid, &[gone]);
        let told = failure(&allocators);
        assert!(
            told.contains("1 of its files cannot be opened, such as /nonexistent/libc.so.6: No such"),
            "{told}"
        );
    }
}
