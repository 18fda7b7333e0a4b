//! BPF programs attached without the command line.

use jjleak::allocators::{CallFollowing, Hints, Placement, Stepping, find_sites};
use jjleak::attach::{Attachment, CodeMapping, Programs, Scope, Settings, Target};
use jjleak::collect::Collector;
use jjleak::processes::{Mapping, ModuleFiles, ModuleTable, Pid};
use jjleak::snapshot::{BlockFilter, Snapshot};
use jjleak::unwind;
use jjleak_common::process::ImageId;
use jjleak_common::stage::Stage;

use crate::Result;

/// Placement of probes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Sites {
    /// At the instructions that jjleak selects for low cost.
    Chosen(CallFollowing),
    /// At the first instructions of functions, like other tools.
    Entries,
}

/// An attachment to a process.
pub(crate) struct Attached {
    pub(crate) attachment: Attachment,
    image: ImageId,
    /// Keeps the files open that the probes' paths refer to.
    _modules: ModuleTable,
}

impl Attached {
    pub(crate) fn to(pid: u32, programs: Programs, sites: Sites) -> Result<Self> {
        Self::up_to(Stage::All, pid, programs, sites)
    }

    /// Attaches programs that stop after a stage.
    pub(crate) fn up_to(stage: Stage, pid: u32, programs: Programs, sites: Sites) -> Result<Self> {
        let pid = Pid::new(pid).ok_or("PID 0")?;
        let mut attachment = Attachment::load(Settings { last_stage: stage, ..Settings::new(programs) })?;
        let slot = attachment.processes_mut().reserve()?.ok_or("no free process slot")?;
        let image = attachment.processes_mut().assign(slot, pid)?.ok_or("the process is already profiled")?;
        let seen = attachment.begin_scan(slot)?;
        let scope = Scope::Process { slot, thread: pid };
        let following = match sites {
            Sites::Chosen(following) => following,
            Sites::Entries => CallFollowing::EntryAndReturn,
        };
        let mut modules = ModuleTable::default();
        for id in modules.refresh(&mut ModuleFiles::default(), pid, &Mapping::all(pid)?) {
            let module = modules.get(id);
            let hints = Hints { following, ..Hints::default() };
            for mut allocator in find_sites(&module.content()?, hints)?.profiled {
                if matches!(sites, Sites::Entries) {
                    for site in &mut allocator.sites {
                        // A wrong frame layout does not matter: the program does nothing.
                        site.placement =
                            Placement { delta: 0, stepping: Stepping::SingleStep, ..site.placement };
                    }
                }
                let targets =
                    allocator.sites.into_iter().map(|site| Target { file: module.stable_path(), site });
                attachment.attach(scope, &targets.collect::<Vec<_>>())?;
            }
        }
        for (_, module) in modules.iter() {
            // Modules without rows are unwound by frame pointers.
            if let Ok(rows) = unwind::verified(&module.content()?) {
                attachment.add_rows(module.version, &rows)?;
            }
        }
        let code: Vec<_> = Mapping::all(pid)?
            .iter()
            .filter(|mapping| mapping.executable && mapping.file.is_some())
            .map(|mapping| CodeMapping::of(mapping, &modules))
            .collect();
        attachment.set_code(image, &code, seen)?;
        attachment.processes().arm(image)?;
        Ok(Self { attachment, image, _modules: modules })
    }

    /// Reads the accounting, like a report.
    pub(crate) fn snapshot(&self, collector: &mut Collector) -> Result<Snapshot> {
        let mut snapshots = collector.snapshots(&self.attachment, &[self.image], BlockFilter::default())?;
        snapshots.remove(&self.image).ok_or_else(|| "no snapshot of the process".into())
    }

    /// Number of frames of the deepest complete stack.
    pub(crate) fn deepest(&mut self) -> Result<usize> {
        let mut collector = Collector::new(&mut self.attachment)?;
        let snapshot = self.snapshot(&mut collector)?;
        let stacks = snapshot.stacks.iter().filter_map(|(row, _)| collector.stack(*row));
        let whole = stacks.filter(|stack| stack.status == jjleak_common::stack::StackStatus::Complete);
        Ok(whole.map(|stack| stack.frames.len()).max().unwrap_or_default())
    }
}
