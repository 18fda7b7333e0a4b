//! The allocators of the profiled processes: finds them in mapped files, and attaches to them.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use jjleak_common::process::ProcessSlot;
use jjleak_common::stack::StackFrame;
use object::elf::ELFMAG;

use crate::allocators::{MissingFunction, ModuleAllocators, ProfiledAllocator, Unfollowed};
use crate::attach::{self, Attachment, Scope, Target};
use crate::error_chain::chain;
use crate::file_content::{Content, LazyFile};
use crate::processes::{FileVersion, Located, Module, ModuleTable};
use crate::session::{AllocatorChoice, Probed};
use crate::snapshot::RawStack;
use crate::symbolize::StackNames;

/// Maximum number of remembered files without an allocator: more than a host has libraries. A build can produce any
/// number of programs.
const MAX_REMEMBERED: usize = 8192;

/// Known allocators and attached probes.
pub(super) struct Allocators {
    choice: Arc<AllocatorChoice>,
    /// Results found before they were needed.
    ahead: HashMap<FileVersion, Result<ModuleAllocators, String>>,
    /// Allocators found in each file.
    found: HashMap<FileVersion, Rc<[ProfiledAllocator]>>,
    /// Files with attached probes, for one process or for all, and the time of attaching in nanoseconds of
    /// `CLOCK_MONOTONIC`. Entries outlive a file's mapping and an `exec`.
    attached: HashMap<(Option<ProcessSlot>, FileVersion), u64>,
    /// Files with allocators, or allocator functions, that cannot be followed, and files that could not be searched.
    unfollowed: HashSet<FileVersion>,
    /// Files with probes. They stay open because probes are attached again through them.
    modules: Vec<Rc<Module>>,
}

impl Allocators {
    pub(super) fn new(choice: Arc<AllocatorChoice>) -> Self {
        Self {
            choice,
            ahead: HashMap::new(),
            found: HashMap::new(),
            unfollowed: HashSet::new(),
            attached: HashMap::new(),
            modules: Vec::new(),
        }
    }

    /// Returns true if no allocator is profiled.
    pub(super) fn are_none(&self) -> bool {
        self.choice.probed == Probed::Nothing
    }

    pub(super) fn choice(&self) -> &AllocatorChoice {
        &self.choice
    }

    /// Adds results found ahead.
    pub(super) fn know(&mut self, ahead: HashMap<FileVersion, Result<ModuleAllocators, String>>) {
        self.ahead = ahead;
    }

    /// Attaches to the allocators in a module, once per scope. Returns true if this call attached probes.
    pub(super) fn attach(
        &mut self,
        module: &Rc<Module>,
        scope: Scope,
        names: &mut StackNames,
        attachment: &mut Attachment,
    ) -> Result<bool, attach::Error> {
        let slot = match scope {
            Scope::Process { slot, .. } => Some(slot),
            Scope::File => None,
        };
        let found = self.find(module);
        if found.is_empty() || self.attached.contains_key(&(slot, module.version)) {
            return Ok(false);
        }
        self.detach_older(module, attachment)?;
        let mut refused = false;
        let mut kept = Vec::new();
        for allocator in found.iter() {
            match attachment.attach(scope, &targets(module, allocator)) {
                Ok(()) => kept.push(allocator.clone()),
                Err(error) if error.is_about_sites() => {
                    report_refused(module, allocator, &error);
                    refused = true;
                    continue;
                }
                Err(error) => return Err(error),
            }
            // A probe of samples is within a function, which keeps its name.
            for site in allocator.functions().filter(|site| site.sample.is_none()) {
                names.set_function(module, site.frame_offset(), &site.label());
            }
        }
        let is_any = !kept.is_empty();
        if refused {
            self.unfollowed.insert(module.version);
            self.found.insert(module.version, kept.into());
        }
        if is_any {
            self.warn_of_another_sampler(slot, module);
            self.attached.insert((slot, module.version), attach::now_ns());
            self.modules.push(Rc::clone(module));
        }
        Ok(is_any)
    }

    /// Warns of a second file in which a process announces samples: their blocks can be the same.
    fn warn_of_another_sampler(&self, slot: Option<ProcessSlot>, module: &Module) {
        let other = self
            .modules
            .iter()
            .find(|known| known.path != module.path && self.attached.contains_key(&(slot, known.version)));
        if let (Probed::Samples, Some(_), Some(other)) = (self.choice.probed, slot, other) {
            tracing::warn!(
                "{} and {} announce samples: blocks that both sample are counted twice; -O FILE selects one of them",
                other.path.display(),
                module.path.display(),
            );
        }
    }

    /// Detaches probes from older versions of a file: after a write, other instructions are at the probe sites.
    fn detach_older(&mut self, module: &Module, attachment: &mut Attachment) -> Result<(), attach::Error> {
        let is_older = |known: &mut Rc<Module>| {
            known.version.file == module.version.file && known.version != module.version
        };
        for older in self.modules.extract_if(.., is_older) {
            tracing::warn!("{} has changed: replacing its probes", older.path.display());
            attachment.detach(&older.stable_path())?;
        }
        Ok(())
    }

    /// Forgets the probes of a process that is gone.
    pub(super) fn forget(&mut self, slot: ProcessSlot) {
        self.attached.retain(|(of, _), _| *of != Some(slot));
    }

    /// Returns true if a module has an allocator that had no probes at `at_ns`, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(super) fn has_missed(&mut self, slot: Option<ProcessSlot>, module: &Module, at_ns: u64) -> bool {
        // An announced object stands for all that its thread has allocated before.
        if self.choice.probed == Probed::JavaHeap {
            return false;
        }
        let since = self.attached.get(&(slot, module.version)).copied();
        !self.find(module).is_empty() && since.is_none_or(|since| since > at_ns)
    }

    /// Returns true if a module has been searched.
    pub(super) fn knows(&self, module: &Module) -> bool {
        self.found.contains_key(&module.version)
    }

    /// Returns true if a module has a profiled allocator.
    pub(super) fn is_profiled(&self, module: &Module) -> bool {
        self.found.get(&module.version).is_some_and(|found| !found.is_empty())
    }

    /// Returns true if a file has an allocator, or an allocator function, that cannot be followed, or if it could not
    /// be searched.
    pub(super) fn is_unfollowed(&self, module: &Module) -> bool {
        self.unfollowed.contains(&module.version)
    }

    /// Returns true if all mapped files with allocators are C libraries, and none is the executable: then none of
    /// them contains the program's own code.
    pub(super) fn are_c_libraries(&self, modules: &ModuleTable, exe: &Path) -> bool {
        let is_c_library = |module: &Module| {
            let found = self.found.get(&module.version).map_or(&[][..], |found| found);
            found.is_empty() || module.path != exe && found.iter().all(ProfiledAllocator::is_c_library)
        };
        modules.iter().all(|(_, module)| is_c_library(module))
    }

    /// Returns true if a stack of a process goes through an allocator. The kernel side recognizes allocation calls in
    /// progress. This covers other functions that map memory: `free`, which makes a heap for a thread if it is the
    /// thread's first call, and functions that cannot be followed.
    pub(super) fn are_in(&self, stack: &RawStack, modules: &ModuleTable, exe: &Path) -> bool {
        let is_allocators = |frame: &StackFrame| {
            // The address follows the call, which can be a function's last instruction.
            let address = frame.address().saturating_sub(1);
            let found = modules.find_frame(address, frame.layer(), &stack.found);
            let Some(Located { module, offset, .. }) = found else { return false };
            let module = modules.get(module);
            let found = self.found.get(&module.version).map_or(&[][..], |found| found);
            found.iter().any(|allocator| allocator.holds(offset, module.path != exe))
        };
        stack.frames.iter().any(is_allocators)
    }

    /// Description of what is counted in a process; empty if nothing is.
    pub(super) fn describe(&self, modules: &ModuleTable) -> String {
        let parts = modules.iter().flat_map(|(_, module)| {
            let name = base_name(&module.path);
            let found = self.found.get(&module.version).map_or(&[][..], |found| found);
            found.iter().map(move |allocator| {
                let functions: usize = allocator.functions().map(|site| site.names.len()).sum();
                let what = if allocator.functions().any(|site| site.sample.is_some()) {
                    "probes"
                } else {
                    "functions"
                };
                format!("{functions} {what} of {} in {name}", allocator.family)
            })
        });
        parts.collect::<Vec<_>>().join(", ")
    }

    /// Finds the allocators in a module; the other methods know only those that were found.
    pub(super) fn search(&mut self, module: &Module) {
        self.find(module);
    }

    /// Finds the allocators in a file. A file that cannot be read has none, and the user gets a warning.
    fn find(&mut self, module: &Module) -> Rc<[ProfiledAllocator]> {
        if let Some(found) = self.found.get(&module.version) {
            return Rc::clone(found);
        }
        if self.found.len() >= MAX_REMEMBERED {
            let unfollowed = &self.unfollowed;
            self.found.retain(|file, found| !found.is_empty() || unfollowed.contains(file));
        }
        let found = self.ahead.remove(&module.version).unwrap_or_else(|| find_in(module, &self.choice));
        if found.as_ref().is_ok_and(|found| !found.unfollowed.is_empty()) || found.is_err() {
            self.unfollowed.insert(module.version);
        }
        let found: Rc<[_]> = profiled(module, found, &self.choice).into();
        self.found.insert(module.version, Rc::clone(&found));
        found
    }
}

/// Profiled allocators of a file. Warns of those that cannot be profiled.
fn profiled(
    module: &Module,
    found: Result<ModuleAllocators, String>,
    choice: &AllocatorChoice,
) -> Vec<ProfiledAllocator> {
    let name = base_name(&module.path);
    match found {
        Ok(ModuleAllocators { profiled, unfollowed, .. }) => {
            for unfollowed in &unfollowed {
                tracing::warn!("{name}: some allocations of its allocator are not counted: {unfollowed}");
            }
            for allocator in &profiled {
                let explicit = choice.is_explicit(&allocator.family);
                for MissingFunction { name: function, reason } in &allocator.missing {
                    if explicit {
                        tracing::warn!("{name}: {function} is not profiled: {reason}");
                    } else {
                        tracing::debug!("{name}: {function} is not profiled: {reason}");
                    }
                }
            }
            profiled
        }
        Err(error) => {
            tracing::warn!("{name}: cannot search for allocators: {error}");
            Vec::new()
        }
    }
}

/// Finds the allocators in a file.
pub(super) fn find_in(module: &Module, choice: &AllocatorChoice) -> Result<ModuleAllocators, String> {
    if choice.probed == Probed::Nothing {
        return Ok(ModuleAllocators::default());
    }
    let content = module.content().map_err(|error| error.to_string())?;
    find_in_content(module, Content::from(&content), choice)
}

/// Finds the allocators in the content of a file; for a stripped executable, with the help of its debug file.
pub(super) fn find_in_content(
    module: &Module,
    elf: Content<'_>,
    choice: &AllocatorChoice,
) -> Result<ModuleAllocators, String> {
    // .NET maps dozens of PE files as its libraries.
    if elf.get(0..ELFMAG.len() as u64) != Some(&ELFMAG) {
        return Ok(ModuleAllocators::default());
    }
    let find = |debug_file: Option<Content<'_>>| {
        choice.find_in(&module.path, elf, debug_file).map_err(|error| error.to_string())
    };
    let found = find(None)?;
    let is_hidden = found.unfollowed.iter().any(|it| matches!(it, Unfollowed::Hidden(_)));
    if !is_hidden && (!found.stripped || !found.profiled.is_empty()) {
        return Ok(found);
    }
    let Some(debug_file) = module.find_debug_file(elf) else { return Ok(found) };
    let debug_file = LazyFile::new(&debug_file).map_err(|error| error.to_string())?;
    find(Some(Content::from(&debug_file)))
}

/// Warns of an allocator whose functions the kernel does not probe.
fn report_refused(module: &Module, allocator: &ProfiledAllocator, error: &attach::Error) {
    tracing::warn!(
        "{}: allocations by {} in this file are not counted, because the kernel refuses probes at its functions: {}",
        module.path.display(),
        allocator.family,
        chain(error)
    );
}

fn targets(module: &Module, allocator: &ProfiledAllocator) -> Vec<Target> {
    let file = module.stable_path();
    for site in &allocator.sites {
        tracing::info!(
            "{} at file offset {:#x} ({:?}, {:?}, {:+})",
            site.names.join("/"),
            site.offset(),
            site.point,
            site.placement.stepping,
            site.placement.delta.cast_signed(),
        );
    }
    allocator.sites.iter().map(|site| Target { file: file.clone(), site: site.clone() }).collect()
}

fn base_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::{Mapping, ModuleFiles, Pid};

    #[test]
    fn what_is_known_of_a_file_is_not_searched_for_again() {
        let pid = Pid::new(std::process::id()).unwrap();
        let mut modules = ModuleTable::default();
        modules.refresh(&mut ModuleFiles::default(), pid, &Mapping::all(pid).unwrap());
        let mut allocators = Allocators::new(Arc::new(AllocatorChoice::default()));
        let found: Vec<_> = modules.iter().map(|(_, module)| module.version).collect();
        let nothing = || Err("known".to_owned());
        allocators.know(found.into_iter().map(|file| (file, nothing())).collect());
        assert!(modules.iter().all(|(_, module)| allocators.find(module).is_empty()));
        assert!(allocators.ahead.is_empty(), "each is asked for once");
    }

    #[test]
    fn what_is_no_program_of_this_system_has_no_allocator_and_that_is_no_failure() {
        let pid = Pid::new(std::process::id()).unwrap();
        let mut modules = ModuleTable::default();
        modules.refresh(&mut ModuleFiles::default(), pid, &Mapping::all(pid).unwrap());
        let (_, module) = modules.iter().next().unwrap();
        let found = |content: &[u8]| find_in_content(module, content.into(), &AllocatorChoice::default());
        assert_eq!(found(b"MZ\x90\0\x03"), Ok(ModuleAllocators::default()));
        assert!(found(b"\x7fELF\x02").is_err(), "a damaged one is");
    }
}
