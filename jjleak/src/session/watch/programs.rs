//! Finds programs that were not counted from their beginning, and names them.
//!
//! The kernel side reports each program as it begins. One that is over before its mappings were scanned is judged by
//! its files: if one of them has an allocator without probes, the program's allocations are missing.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::Watch;
use super::earlier_runs::Program;
use super::process::Watched;
use crate::attach::{BegunProgram, Following, RecordedFile, Scope};
use crate::processes::{self, Launch, Module, Pid, ProgramFiles};
use crate::session::Error;

/// Maximum number of processes in whose root folders a file is searched for.
const MAX_ROOTS: usize = 16;

/// Verdict on a program that has begun.
enum Verdict {
    /// The program runs, and will be scanned.
    Runs,
    /// Every allocator that the program can have used had probes, or is known to have got them late.
    Counted,
    /// The program may have allocated uncounted: in this file, for this reason.
    Missed(PathBuf, &'static str),
}

impl Watch {
    /// Judges programs that are over.
    pub(super) fn judge_programs(&mut self) {
        for program in std::mem::take(&mut self.lifecycle.begun) {
            let slot = program.image.slot();
            // Its process is not profiled.
            let Some(mut watched) = self.processes.remove(&slot) else { continue };
            match self.verdict(&program, &mut watched) {
                Verdict::Runs => self.lifecycle.begun.push(program.clone()),
                Verdict::Counted => watched.forget_files(program.image),
                Verdict::Missed(file, why) => {
                    watched.forget_files(program.image);
                    watched.unseen += 1;
                    let (pid, file) = (watched.pid(), file.display());
                    tracing::warn!(
                        "allocations of {} in process {pid} are not counted: {file} {why}",
                        program.path.display()
                    );
                }
            }
            if watched.image == program.image && watched.process.exe.as_os_str().is_empty() {
                watched.process.exe.clone_from(&program.path);
            }
            self.processes.insert(slot, watched);
        }
    }

    fn verdict(&mut self, program: &BegunProgram, watched: &mut Watched) -> Verdict {
        let is_current = self.attachment.processes().images().is_current(program.image);
        if is_current && watched.ended.is_none() {
            return Verdict::Runs;
        }
        if self.files.allocators.are_none() {
            return Verdict::Counted;
        }
        // All records, now that the program is over.
        self.receive_files();
        let pid = watched.pid();
        let was_seen = watched.was_seen(program.image);
        let known = program.file.and_then(|version| self.files.open.find(version));
        let recorded: Vec<_> = self.files.log.of(pid.number().get(), program.at_ns).cloned().collect();
        let is_program =
            |file: &&RecordedFile| program.file.is_some_and(|version| version.file.inode == file.file.inode);
        let recorded_path = recorded.iter().find(is_program).map(|file| &file.path);
        let known_path = known.as_ref().map(|module| &module.path);
        let path = known_path.or(recorded_path).unwrap_or(&program.path).clone();
        let roots = self.roots(pid, program.mount_namespace);
        let found = self.files.open.open_program(&roots, &path, program.file);
        if found.is_none() && was_seen {
            return Verdict::Counted;
        }
        // A deleted program may still be open in jjleak, and its libraries are those of a similar process.
        let found =
            found.or_else(|| roots.iter().copied().find(|root| root.proc_file("root/").exists()).zip(known));
        let Some((root, module)) = found else {
            return Verdict::Missed(program.path.clone(), "ended before it could be read");
        };
        let files = if recorded.is_empty() || self.files.log.has_lost(pid.number().get(), program.at_ns) {
            self.files.open.needed_by(root, &module)
        } else {
            self.open_recorded(&roots, &module, &recorded)
        };
        if !was_seen && let Some(started) = &self.lifecycle.started {
            self.files.earlier.add(started, files.modules.iter().map(|module| module.path.clone()));
        }
        let scope = (self.lifecycle.following == Following::Nobody).then_some(program.image.slot());
        let mut missed = None;
        for module in &files.modules {
            if self.files.allocators.has_missed(scope, module, program.at_ns)
                && !watched.late.contains(program.image, module.version)
            {
                self.expect_allocator(module, scope.is_none());
                missed.get_or_insert_with(|| module.path.clone());
            }
            if self.files.allocators.is_unfollowed(module) {
                watched.unfollowed.add(program.image, module.version);
            }
        }
        match missed {
            Some(path) => {
                Verdict::Missed(path, "has an allocator, and the program ended before it was probed")
            }
            None if files.lacks && !was_seen => {
                Verdict::Missed(module.path.clone(), "ended before its libraries were known")
            }
            None => Verdict::Counted,
        }
    }

    /// Opens the files that a program has mapped by the kernel's records.
    fn open_recorded(&mut self, roots: &[Pid], program: &Rc<Module>, files: &[RecordedFile]) -> ProgramFiles {
        let (mut modules, mut lacks) = (vec![Rc::clone(program)], false);
        for RecordedFile { file, path, .. } in files {
            match self.files.open.open_recorded(roots, path, *file) {
                Some(module) if !modules.iter().any(|known| known.version == module.version) => {
                    modules.push(module);
                }
                Some(_) => {}
                None => lacks |= *file != program.version.file,
            }
        }
        ProgramFiles { modules, lacks }
    }

    /// Counts the files with allocators that cannot be followed.
    pub(super) fn note_unfollowed(&self, watched: &mut Watched) {
        let unfollowed =
            watched.modules.iter().filter(|(_, module)| self.files.allocators.is_unfollowed(module));
        let files: Vec<_> = unfollowed.map(|(_, module)| module.version).collect();
        for file in files {
            watched.unfollowed.add(watched.image, file);
        }
    }

    /// Processes whose root folders may contain the files of a process that is gone: itself, jjleak, and others in
    /// its mount namespace. Profiled ones come before other processes, because their root can differ from that of
    /// their namespace (`chroot`).
    pub(super) fn roots(&self, pid: Pid, namespace: Option<u64>) -> Vec<Pid> {
        let is_in = |other: &Pid| namespace.is_none() || processes::mount_namespace(*other) == namespace;
        let own = Pid::new(std::process::id()).filter(is_in);
        let mut roots: Vec<_> = [pid].into_iter().chain(own).collect();
        let is_elsewhere = |other: &&Watched| own.is_none() || other.process.container_pid.is_some();
        let profiled = self.processes.values().filter(|other| other.ended.is_none()).filter(is_elsewhere);
        roots.extend(profiled.map(Watched::pid).filter(is_in).take(MAX_ROOTS));
        if roots.len() == 1 {
            roots.extend(processes::running().map(|process| process.pid).find(is_in));
        }
        roots
    }

    /// Prepares for the next use of an allocator that was found too late: in the next run, and with probes for
    /// everybody at once.
    pub(super) fn expect_allocator(&mut self, module: &Rc<Module>, for_everybody: bool) {
        self.note_allocator(&module.path);
        if for_everybody {
            self.prepare(module, Scope::File);
        }
    }

    /// Saves, for the next run, that a file has an allocator which needs probes from the beginning.
    pub(super) fn note_allocator(&self, path: &Path) {
        if let Some(program) = &self.lifecycle.started {
            self.files.earlier.add_allocator(program, path);
        }
    }

    /// Attaches probes to files that the command is likely to run, although nobody maps them yet: programs that its arguments
    /// name, and files with allocators that were found too late in earlier runs of the command or of these programs.
    pub(super) fn prepare_programs(&mut self, watched: &Watched, named: &[(Program, Rc<Module>)]) {
        let (pid, slot) = (watched.pid(), watched.slot());
        let scope = match self.lifecycle.following {
            Following::Nobody => Scope::Process { slot, thread: watched.bound_to.unwrap_or(pid) },
            Following::Children | Following::Everyone => Scope::File,
        };
        let mut modules = Vec::new();
        for (_, program) in named {
            modules.extend(self.files.open.needed_by(pid, program).modules);
        }
        let programs = watched.started.iter().chain(named.iter().map(|(program, _)| program));
        for path in programs.flat_map(|program| self.files.earlier.allocators_of(program)) {
            modules.extend(self.files.open.open_program(&[pid], &path, None).map(|(_, module)| module));
        }
        for module in modules {
            self.prepare(&module, scope);
        }
    }

    /// Programs that the arguments of the command name.
    pub(super) fn named_by(&mut self, launch: &Launch) -> Vec<(Program, Rc<Module>)> {
        let named = self.files.open.named_by(launch.pid(), launch.arguments());
        let identify = |(name, module): (String, Rc<Module>)| (Program::named(&module.key(), &name), module);
        named.into_iter().map(identify).collect()
    }

    fn prepare(&mut self, module: &Rc<Module>, scope: Scope) {
        match self.files.allocators.attach(module, scope, &mut self.stacks.names, &mut self.attachment) {
            Ok(true) => self.stacks.code.prepare(module, &mut self.attachment),
            Ok(false) => {}
            Err(error) => {
                tracing::debug!(%error, path = %module.path.display(), "cannot attach probes in advance");
            }
        }
    }

    /// Attaches to the allocators of a process, and counts those that it may have used before.
    pub(super) fn attach_allocator(
        &mut self,
        watched: &mut Watched,
        module: &Rc<Module>,
        scope: Scope,
    ) -> Result<(), Error> {
        self.files.allocators.attach(module, scope, &mut self.stacks.names, &mut self.attachment)?;
        let slot = match scope {
            Scope::Process { slot, .. } => Some(slot),
            Scope::File => None,
        };
        if watched.is_armed
            && self.files.allocators.has_missed(slot, module, watched.known_ns)
            && watched.late.add(watched.image, module.version)
        {
            let (path, pid) = (module.path.display(), watched.pid());
            tracing::warn!("{path} has an allocator that is counted only from now on in process {pid}");
            self.note_allocator(&module.path);
        }
        Ok(())
    }
}
