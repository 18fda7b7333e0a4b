//! Whether the programs that processes run are counted from their beginning, and names those that are not.
//!
//! The kernel side tells of each program as it begins. One that is over before anybody has seen what it maps is judged by its
//! files: where one of them has an allocator without probes, its allocations are missing.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::Watch;
use super::process::Watched;
use crate::attach::{BegunProgram, Following, Scope};
use crate::cli::Failure;
use crate::processes::{self, Launch, Module, Pid};

/// Most processes in whose roots a file is looked for.
const MAX_ROOTS: usize = 16;

/// What is known of a program that has begun.
enum Verdict {
    /// It runs, and will be looked at.
    Runs,
    /// Every allocator that it can have used had probes, or is known to have got them late.
    Counted,
    /// This is where it may have allocated without being seen, and why.
    Missed(PathBuf, &'static str),
}

impl Watch {
    /// Judges the programs that are over.
    pub(super) fn judge_programs(&mut self) {
        for program in std::mem::take(&mut self.begun) {
            let slot = program.image.slot();
            // Whoever is not wanted is in nobody's way.
            let Some(mut watched) = self.processes.remove(&slot) else { continue };
            match self.verdict(&program, &mut watched) {
                Verdict::Runs => self.begun.push(program.clone()),
                Verdict::Counted => watched.forget_files(program.image),
                Verdict::Missed(file, why) => {
                    watched.forget_files(program.image);
                    watched.unseen += 1;
                    let (pid, file) = (watched.pid(), file.display());
                    tracing::warn!(
                        "what {} did in process {pid} is not counted: {file} {why}",
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
        let pid = watched.pid();
        let was_seen = watched.was_seen(program.image);
        let known = program.file.and_then(|version| self.files.find(version));
        let path = known.as_ref().map_or(&program.path, |module| &module.path).clone();
        let roots = self.roots(pid, program.mount_namespace);
        let found = self.files.open_program(&roots, &path, program.file);
        if found.is_none() && was_seen {
            return Verdict::Counted;
        }
        // One that was deleted meanwhile is still open, and its libraries are those of a process like it.
        let found =
            found.or_else(|| roots.into_iter().find(|root| root.proc_file("root/").exists()).zip(known));
        let Some((root, module)) = found else {
            return Verdict::Missed(program.path.clone(), "was over before it could be read");
        };
        let files = self.files.needed_by(root, &module);
        if !was_seen && let Some(started) = &self.started {
            self.earlier.add(started, files.modules.iter().map(|module| module.path.clone()));
        }
        let scope = (self.following == Following::Nobody).then_some(program.image.slot());
        let mut missed = None;
        for module in &files.modules {
            if self.allocators.has_missed(scope, module, program.at_ns)
                && !watched.late.contains(program.image, module.version)
            {
                self.expect_allocator(module, scope.is_none());
                missed.get_or_insert_with(|| module.path.clone());
            }
            if self.allocators.is_unfollowed(module) {
                watched.unfollowed.add(program.image, module.version);
            }
        }
        match missed {
            Some(path) => Verdict::Missed(path, "has an allocator, and was over before it had probes"),
            None if files.lacks && !was_seen => {
                Verdict::Missed(module.path.clone(), "was over before its libraries could be seen")
            }
            None => Verdict::Counted,
        }
    }

    /// Counts the files with allocators that cannot be followed.
    pub(super) fn note_unfollowed(&self, watched: &mut Watched) {
        let unfollowed = watched.modules.iter().filter(|(_, module)| self.allocators.is_unfollowed(module));
        let files: Vec<_> = unfollowed.map(|(_, module)| module.version).collect();
        for file in files {
            watched.unfollowed.add(watched.image, file);
        }
    }

    /// Processes in whose roots the files of one may be that is gone: itself, jjleak, and others in its mount namespace. Those that
    /// are profiled come first, for their roots can be other ones than their namespace's (`chroot`).
    fn roots(&self, pid: Pid, namespace: Option<u64>) -> Vec<Pid> {
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

    /// Has an allocator that was met too late be ready the next time: for everybody from now on, if probes are for everybody, and
    /// for the next run.
    pub(super) fn expect_allocator(&mut self, module: &Rc<Module>, for_everybody: bool) {
        self.note_allocator(&module.path);
        if for_everybody {
            self.prepare(module, Scope::File);
        }
    }

    /// Notes for the next run that a file has an allocator which is to have probes from the beginning.
    pub(super) fn note_allocator(&self, path: &Path) {
        if let Some(program) = &self.started {
            self.earlier.add_allocator(program, path);
        }
    }

    /// Puts probes into files that the command is likely to run, though nobody maps them yet: those that its arguments name, and
    /// those in which allocators were met too late in earlier runs.
    pub(super) fn prepare_programs(&mut self, watched: &Watched, launch: &Launch) {
        let (pid, slot) = (watched.pid(), watched.slot());
        let scope = match self.following {
            Following::Nobody => Scope::Process { slot, thread: watched.bound_to.unwrap_or(pid) },
            Following::Children | Following::Everyone => Scope::File,
        };
        let mut modules = Vec::new();
        for program in self.files.named_by(pid, launch.arguments()) {
            modules.extend(self.files.needed_by(pid, &program).modules);
        }
        for path in
            self.started.as_ref().map(|program| self.earlier.allocators_of(program)).unwrap_or_default()
        {
            modules.extend(self.files.open_program(&[pid], &path, None).map(|(_, module)| module));
        }
        for module in modules {
            self.prepare(&module, scope);
        }
    }

    fn prepare(&mut self, module: &Rc<Module>, scope: Scope) {
        match self.allocators.attach(module, scope, &mut self.names, &mut self.attachment) {
            Ok(true) => self.code.expect(module, &mut self.attachment),
            Ok(false) => {}
            Err(error) => tracing::debug!(%error, path = %module.path.display(), "no probes ahead"),
        }
    }

    /// Attaches to the allocators that a process has, and counts those that it may have used before.
    pub(super) fn attach_allocator(
        &mut self,
        watched: &mut Watched,
        module: &Rc<Module>,
        scope: Scope,
    ) -> Result<(), Failure> {
        self.allocators.attach(module, scope, &mut self.names, &mut self.attachment)?;
        let slot = match scope {
            Scope::Process { slot, .. } => Some(slot),
            Scope::File => None,
        };
        if watched.is_armed
            && self.allocators.has_missed(slot, module, watched.known_ns)
            && watched.late.add(watched.image, module.version)
        {
            let (path, pid) = (module.path.display(), watched.pid());
            tracing::warn!("{path} has an allocator, which counts from now on in process {pid}");
            self.note_allocator(&module.path);
        }
        Ok(())
    }
}
