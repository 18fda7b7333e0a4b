//! Programs attached without the command line in between.

use jjleak::allocators::{CallFollowing, Hints, Placement, Stepping, find_sites};
use jjleak::attach::{Attachment, CodeMapping, Programs, Scope, Settings, Target};
use jjleak::collect::{BlockFilter, Collector, Snapshot};
use jjleak::processes::{Mapping, ModuleFiles, ModuleTable, Pid};
use jjleak::unwind;
use jjleak_common::process::ImageId;
use jjleak_common::stage::Stage;

use crate::Result;

/// Where probes are put.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Sites {
    /// At the instructions that are chosen for what they cost.
    Chosen(CallFollowing),
    /// At the first instructions of functions, as everybody else does.
    Entries,
}

/// An attachment to a process.
pub(crate) struct Attached {
    pub(crate) attachment: Attachment,
    image: ImageId,
    /// Keeps the files open that the probes' paths lead to.
    _modules: ModuleTable,
}

impl Attached {
    pub(crate) fn to(pid: u32, programs: Programs, sites: Sites) -> Result<Self> {
        Self::up_to(Stage::All, pid, programs, sites)
    }

    /// With programs that end with a stage.
    pub(crate) fn up_to(stage: Stage, pid: u32, programs: Programs, sites: Sites) -> Result<Self> {
        let pid = Pid::new(pid).ok_or("PID 0")?;
        let mut attachment = Attachment::load(Settings { last_stage: stage, ..Settings::new(programs) })?;
        let slot = attachment.processes_mut().reserve()?.ok_or("no room for a process")?;
        let image = attachment.processes_mut().assign(slot, pid)?.ok_or("it is profiled already")?;
        let seen = attachment.begin_look(slot)?;
        let scope = Scope::Process { slot, thread: pid };
        let following = match sites {
            Sites::Chosen(following) => following,
            Sites::Entries => CallFollowing::EntryAndReturn,
        };
        let mut modules = ModuleTable::default();
        for id in modules.refresh(&mut ModuleFiles::default(), pid, &Mapping::all(pid)?) {
            let module = modules.get(id);
            let hints = Hints { following, ..Hints::default() };
            for mut allocator in find_sites(&module.read()?, hints)?.profiled {
                if matches!(sites, Sites::Entries) {
                    for site in &mut allocator.sites {
                        // What the program at it would have to know of the frame does not matter: it does nothing.
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
            // What has no rows is unwound by frame pointers.
            if let Ok(rows) = unwind::verified(&*module.read()?) {
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

    /// Reads the books, as a report does.
    pub(crate) fn snapshot(&self, collector: &mut Collector) -> Result<Snapshot> {
        let mut snapshots = collector.snapshots(&self.attachment, &[self.image], BlockFilter::default())?;
        snapshots.remove(&self.image).ok_or_else(|| "there is no snapshot".into())
    }

    /// How many frames the longest stack has, of those that are whole.
    pub(crate) fn deepest(&mut self) -> Result<usize> {
        let mut collector = Collector::new(&mut self.attachment)?;
        let snapshot = self.snapshot(&mut collector)?;
        let stacks = snapshot.stacks.iter().filter_map(|(row, _)| collector.stack(*row));
        let whole = stacks.filter(|stack| stack.status == jjleak_common::stack::StackStatus::Complete);
        Ok(whole.map(|stack| stack.frames.len()).max().unwrap_or_default())
    }
}
