//! Mapped code that the kernel side found on stacks, in files that a process may have mapped and left before jjleak
//! read its mappings.

use std::collections::HashSet;
use std::path::Path;
use std::rc::Rc;

use super::Watch;
use super::process::Watched;
use crate::attach::{Following, MappedCode};
use crate::processes::Module;

impl Watch {
    /// Adds the mappings that the kernel side has reported for the process's program, if their files are open. The
    /// next scan of the mappings opens the others.
    pub(super) fn learn(&mut self, watched: &mut Watched) {
        let reported = self.learn_open(watched);
        if !reported.is_empty() {
            self.learned.insert(watched.image, reported);
        }
    }

    /// Closes an image whose program is over. Searches by inode for the files of reported mappings that were never
    /// opened, and counts those not found, as well as allocators without probes.
    pub(super) fn close_image(&mut self, watched: &mut Watched) {
        if watched.closed.replace(watched.image) == Some(watched.image) || !watched.is_armed {
            return;
        }
        let reported = self.learn_open(watched);
        if !reported.is_empty() {
            self.search(watched, &reported);
        }
        let modules: Vec<_> = watched.modules.iter().map(|(_, module)| Rc::clone(module)).collect();
        for module in &modules {
            self.note_missed(watched, module);
        }
    }

    /// Adds reported mappings of open files, and returns the others.
    fn learn_open(&mut self, watched: &mut Watched) -> Vec<MappedCode> {
        let mut reported = self.learned.remove(&watched.image).unwrap_or_default();
        reported.retain(|code| {
            let module = self.files.find(code.file);
            module.is_none_or(|module| {
                watched.modules.learn(&code.addresses, code.file_offset, module);
                false
            })
        });
        reported
    }

    /// Searches for the files of code that a finished program mapped.
    fn search(&mut self, watched: &mut Watched, reported: &[MappedCode]) {
        let earlier = self.started.as_ref().map(|program| self.earlier.of(program)).unwrap_or_default();
        let earlier = earlier.iter().filter_map(|path| path.parent());
        let folders: HashSet<_> =
            watched.modules.folders().into_iter().chain(earlier).map(Path::to_path_buf).collect();
        let wanted = reported.iter().map(|code| code.file).collect();
        let found = self.files.find_in_folders(watched.pid(), folders.into_iter(), &wanted);
        for code in reported {
            if let Some(module) = found.iter().find(|module| module.version == code.file) {
                watched.modules.learn(&code.addresses, code.file_offset, Rc::clone(module));
            } else if watched.unseen_files.add(watched.image, code.file) {
                tracing::warn!(
                    "process {} was over before a file that it mapped could be found (inode {}): what an allocator in it \
                     gave is not counted",
                    watched.pid(),
                    code.file.file.inode
                );
            }
        }
    }

    /// Counts a file of a finished program if it has an allocator without probes.
    fn note_missed(&mut self, watched: &mut Watched, module: &Rc<Module>) {
        let slot = (self.following == Following::Nobody).then_some(watched.slot());
        if self.allocators.has_missed(slot, module, watched.known_ns)
            && watched.late.add(watched.image, module.version)
        {
            let (path, pid) = (module.path.display(), watched.pid());
            tracing::warn!(
                "{path} has an allocator, which is not counted in process {pid}: that was over before"
            );
            self.expect_allocator(module, slot.is_none());
        }
        if self.allocators.is_unfollowed(module) {
            watched.unfollowed.add(watched.image, module.version);
        }
    }

    /// Adds a report of the kernel side, which repeats it until the code is known.
    pub(super) fn note_reported(&mut self, code: MappedCode) {
        let reported = self.learned.entry(code.image).or_default();
        if !reported.contains(&code) {
            reported.push(code);
        }
    }

    /// Forgets reports of finished programs.
    pub(super) fn forget_reported(&mut self) {
        let images = self.attachment.processes().images();
        self.learned.retain(|image, _| images.is_current(*image));
    }
}
