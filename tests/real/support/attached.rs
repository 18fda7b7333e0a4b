//! The accounting of a running process, read without the command line.

use jjleak::allocators::{Hints, find_sites, sample_sites};
use jjleak::attach::{Attachment, CodeMapping, Part, Programs, Scope, Settings, Target};
use jjleak::collect::Collector;
use jjleak::jvm::{self, Jvm, ProcessMemory, Symbols};
use jjleak::processes::{Mapping, ModuleFiles, ModuleTable, Pid};
use jjleak::snapshot::{BlockFilter, Snapshot};
use jjleak::unwind;
use jjleak_common::process::ImageId;
use jjleak_common::unwind::CodeSeen;

pub(crate) struct Attached {
    attachment: Attachment,
    pub(crate) collector: Collector,
    /// Keeps the files open that the probes' paths refer to.
    _modules: ModuleTable,
    pub(crate) image: ImageId,
    code: Vec<CodeMapping>,
}

impl Attached {
    /// Attaches to the allocators of a process, and starts counting.
    pub(crate) fn to(pid: u32, settings: Settings) -> Self {
        let pid = Pid::new(pid).unwrap();
        let mut attachment = Attachment::load(settings).unwrap();
        let slot = attachment.processes_mut().reserve().unwrap().unwrap();
        let image = attachment.processes_mut().assign(slot, pid).unwrap().unwrap();
        let mut modules = ModuleTable::default();
        let seen = attachment.begin_scan(slot).unwrap();
        let mappings = Mapping::all(pid).unwrap();
        for id in modules.refresh(&mut ModuleFiles::default(), pid, &mappings) {
            let module = modules.get(id);
            let content = module.content().unwrap();
            let found = match settings.programs {
                Programs::Samples => sample_sites((&content).into()),
                _ => find_sites(&content, Hints::default()),
            };
            for allocator in found.unwrap().profiled {
                let target = |site| Target { file: module.stable_path(), site };
                let targets: Vec<_> = allocator.sites.into_iter().map(target).collect();
                attachment.attach(Scope::Process { slot, thread: pid }, &targets).unwrap();
            }
        }
        for (_, module) in modules.iter() {
            if let Ok(rows) = unwind::verified(&module.content().unwrap()) {
                attachment.add_rows(module.version, &rows).unwrap();
            }
        }
        if let Some((library, bias)) = jvm::library(&mappings, &modules) {
            let symbols = Symbols::of(&library.content().unwrap()).unwrap();
            let jvm = Jvm::described(ProcessMemory::open(pid).unwrap(), symbols.above(bias)).unwrap();
            let code = jvm.code_cache(&jvm.heaps().unwrap()).unwrap();
            attachment.set_generated(slot, &code);
            let offset = library.offset_of_code(symbols.frees_code().unwrap()).unwrap();
            attachment.count_freed_code(image, library.version, &library.stable_path(), offset).unwrap();
        }
        let executable = mappings.iter().filter(|mapping| mapping.executable && mapping.file.is_some());
        let code: Vec<_> = executable.map(|mapping| CodeMapping::of(mapping, &modules)).collect();
        attachment.set_code(image, &code, seen).unwrap();
        let collector = Collector::new(&mut attachment).unwrap();
        attachment.processes().arm(image).unwrap();
        Self { attachment, collector, _modules: modules, image, code }
    }

    /// Begins a scan of the process's mappings.
    pub(crate) fn begin_scan(&self) -> CodeSeen {
        self.attachment.begin_scan(self.image.slot()).unwrap()
    }

    /// Ends a scan that has found the code that there was when jjleak attached.
    pub(crate) fn end_scan(&mut self, seen: CodeSeen) {
        self.attachment.set_code(self.image, &self.code, seen).unwrap();
    }

    pub(crate) fn holds_code(&self) -> bool {
        self.attachment.holds_code(self.image.slot()).unwrap()
    }

    /// Binds the probes to a thread.
    pub(crate) fn rebind(&mut self, thread: u32) {
        self.attachment.rebind(self.image.slot(), Pid::new(thread).unwrap()).unwrap();
    }

    /// Detaches the probes of allocations, and attaches them again at once.
    pub(crate) fn rest_and_wake(&mut self) {
        self.attachment.rest(Part::Allocations);
        self.attachment.wake(Part::Allocations).unwrap();
    }

    /// Number of stacks whose frames the kernel side has sent.
    pub(crate) fn new_stacks(&mut self) -> usize {
        self.collector.receive_frames();
        self.collector.take_new(self.image).len()
    }

    pub(crate) fn snapshot(&mut self, view: BlockFilter) -> Snapshot {
        let mut snapshots = self.collector.snapshots(&self.attachment, &[self.image], view).unwrap();
        snapshots.remove(&self.image).unwrap()
    }
}
