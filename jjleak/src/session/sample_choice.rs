//! Chooses between counting within a bound and the samples that a process draws itself.

use std::time::Duration;

use super::{AllocatorChoice, Notice, Observer, Plan, Probed, Target, estimate};
use crate::allocators::{CallFollowing, sample_sites};
use crate::attach::{Programs, SizeFilter};
use crate::file_content::Content;
use crate::processes::{Mapping, Module, ModuleFiles, ModuleTable, Pid};
use crate::profile::{Sampling, SourceKind};

/// Time of counting calls. Half the price of counting everything, for so short a time, is less than what a bound of 1 % allows in 10 s.
const COUNTING: Duration = Duration::from_millis(200);

/// The plan, with the samples of the process as its source if counting everything would exceed the bound of the plan.
pub(super) fn prefer_samples<O: Observer>(plan: Plan, observer: &mut O) -> Plan {
    let (Some(bound), Some(pid)) = (plan.cost_bound, only_process(&plan)) else { return plan };
    if !can_be_of_samples(&plan) {
        return plan;
    }
    let Some(file) = announces_samples(pid) else { return plan };
    // Without an estimate, the bound holds by other means.
    let Ok((_, estimate)) = estimate::estimate(pid, AllocatorChoice::default(), COUNTING, || {}) else {
        return plan;
    };
    let share = estimate.of_cpu().unwrap_or_else(|| estimate.of_core());
    if share <= bound.share {
        return plan;
    }
    observer.notify(&Notice::Samples { pid, file: &file, share, bound: bound.share });
    of_samples(plan)
}

fn only_process(plan: &Plan) -> Option<Pid> {
    match &plan.target {
        Target::Pids(pids) => <[Pid; 1]>::try_from(&**pids).ok().map(|[pid]| pid),
        _ => None,
    }
}

/// Returns true for a plan that counts all allocations by all allocators.
fn can_be_of_samples(plan: &Plan) -> bool {
    let AllocatorChoice { probed, only, named, following } = &plan.allocators;
    plan.settings.programs == Programs::Accounting
        && plan.settings.sizes == SizeFilter::default()
        && plan.settings.mappings.is_none()
        && !plan.settings.faults
        && plan.coverage.sampling == Sampling::Off
        && *probed == Probed::Allocators
        && only.is_none()
        && named.is_empty()
        && *following == CallFollowing::default()
}

/// Name of the first file of a process that announces samples.
fn announces_samples(pid: Pid) -> Option<String> {
    let mappings = Mapping::all(pid).ok()?;
    let mut modules = ModuleTable::default();
    modules.refresh(&mut ModuleFiles::default(), pid, &mappings);
    let announces = |module: &Module| {
        let content = module.content().ok()?;
        let sites = sample_sites(Content::from(&content)).ok()?;
        (!sites.profiled.is_empty()).then(|| module.path.display().to_string())
    };
    modules.iter().find_map(|(_, module)| announces(module))
}

fn of_samples(mut plan: Plan) -> Plan {
    plan.settings.programs = Programs::Samples;
    plan.settings.sampling = Sampling::Announced;
    plan.coverage.sampling = Sampling::Announced;
    plan.coverage.source = SourceKind::Sampled;
    plan.allocators.probed = Probed::Samples;
    plan.cost_bound = None;
    plan
}
