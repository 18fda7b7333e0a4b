//! Files that a process may have mapped and left before jjleak read its mappings: those with code that the kernel side found
//! on stacks, and those that the kernel has recorded.

use std::path::Path;
use std::rc::Rc;

use jjleak_common::process::ProcessSlot;

use super::Watch;
use super::process::Watched;
use crate::attach::{Following, MappedCode, RecordedFile};
use crate::processes::{FileId, FileVersion, Module};

impl Watch {
    /// Adds the mappings that the kernel side has reported for the process's program, if their files are open. The
    /// next scan of the mappings opens the others.
    pub(super) fn learn(&mut self, watched: &mut Watched) {
        let reported = self.learn_open(watched);
        if !reported.is_empty() {
            self.files.reported.insert(watched.image, reported);
        }
    }

    /// Closes the images of processes that have ended.
    pub(super) fn close_images(&mut self, ended: &[ProcessSlot]) {
        for slot in ended {
            if let Some(mut watched) = self.processes.remove(slot) {
                self.close_image(&mut watched);
                self.processes.insert(*slot, watched);
            }
        }
    }

    /// Closes an image whose program is over: adds the files that it mapped since the last scan, counts those that cannot be
    /// found any more, and allocators without probes.
    pub(super) fn close_image(&mut self, watched: &mut Watched) {
        if watched.closed.replace(watched.image) == Some(watched.image)
            || !watched.is_armed
            || self.files.allocators.are_none()
        {
            return;
        }
        // All records, now that the program is over.
        self.receive_files();
        self.learn_recorded(watched);
        let pid = watched.pid().number().get();
        if self.files.log.has_lost(pid, watched.scanned_ns.max(watched.image_since_ns)) {
            let unknown = FileId { device: (0, 0), inode: 0 };
            note_unseen(watched, unknown, Path::new("unknown: the kernel had no room for records"));
        }
        let reported = self.learn_open(watched);
        // Of files that were modified while they were mapped, such as those that runtimes generate code in, a version is known.
        let unknown: Vec<_> =
            reported.iter().map(|code| code.file.file).filter(|file| !watched.modules.maps(*file)).collect();
        for file in unknown {
            note_unseen(watched, file, Path::new("path unknown"));
        }
        let modules: Vec<_> = watched.modules.iter().map(|(_, module)| Rc::clone(module)).collect();
        for module in &modules {
            self.note_missed(watched, module);
        }
        self.finish_last_stacks(watched);
    }

    /// Adds the files that the image has mapped by the kernel's records.
    fn learn_recorded(&mut self, watched: &mut Watched) {
        let begun = self.lifecycle.begun.iter().find(|program| program.image == watched.image);
        // The program itself is judged separately.
        let is_program = |file: FileId| {
            begun.and_then(|program| program.file).is_some_and(|version| version.file.inode == file.inode)
        };
        let recorded = self.files.log.of(watched.pid().number().get(), watched.image_since_ns);
        let new: Vec<_> = recorded.filter(|file| !watched.modules.maps(file.file)).cloned().collect();
        if new.is_empty() {
            return;
        }
        let roots = self.roots(watched.pid(), begun.and_then(|program| program.mount_namespace));
        for RecordedFile { addresses, file_offset, file, path } in new {
            match self.files.open.open_recorded(&roots, &path, file) {
                Some(module) => watched.modules.learn(&addresses, file_offset, module),
                None if is_program(file) => {}
                None => note_unseen(watched, file, &path),
            }
        }
    }

    /// Adds reported mappings of open files, and returns the others.
    fn learn_open(&mut self, watched: &mut Watched) -> Vec<MappedCode> {
        let mut reported = self.files.reported.remove(&watched.image).unwrap_or_default();
        reported.retain(|code| {
            let module = self.files.open.find(code.file);
            module.is_none_or(|module| {
                watched.modules.learn(&code.addresses, code.file_offset, module);
                false
            })
        });
        reported
    }

    /// Counts a file of a finished program if it has an allocator without probes.
    fn note_missed(&mut self, watched: &mut Watched, module: &Rc<Module>) {
        let slot = (self.lifecycle.following == Following::Nobody).then_some(watched.slot());
        if self.files.allocators.has_missed(slot, module, watched.known_ns)
            && watched.late.add(watched.image, module.version)
        {
            let (path, pid) = (module.path.display(), watched.pid());
            tracing::warn!(
                "the allocator in {path} is not counted in process {pid}: the program ended before it was probed"
            );
            self.expect_allocator(module, slot.is_none());
        }
        if self.files.allocators.is_unfollowed(module) {
            watched.unfollowed.add(watched.image, module.version);
        }
    }

    /// Adds a report of the kernel side, which repeats it until the code is known.
    pub(super) fn note_reported(&mut self, code: MappedCode) {
        let reported = self.files.reported.entry(code.image).or_default();
        if !reported.contains(&code) {
            reported.push(code);
        }
    }

    /// Forgets reports of finished programs.
    pub(super) fn forget_reported(&mut self) {
        let images = self.attachment.processes().images();
        self.files.reported.retain(|image, _| images.is_current(*image));
    }
}

/// Counts a file that an image has mapped and that cannot be found any more.
fn note_unseen(watched: &mut Watched, file: FileId, path: &Path) {
    if watched.unseen_files.add(watched.image, FileVersion { file, changed: (0, 0) }) {
        tracing::warn!(
            "process {} ended before a file that it mapped could be found ({}; inode {}): allocations by an allocator in \
             this file are not counted",
            watched.pid(),
            path.display(),
            file.inode
        );
    }
}
