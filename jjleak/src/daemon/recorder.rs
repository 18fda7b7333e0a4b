//! Carries out an [`Order`]: a run whose profiles go to the daemon.

use std::sync::Arc;

use tokio::sync::Notify;

use super::profile::{Kind, Order, Take};
use crate::attach::Following;
use crate::error_chain::chain;
use crate::notices::print;
use crate::processes::Pid;
use crate::profile::{Profile, Sampling};
use crate::session::{self, CostBound, Error, Notice, Observer, Plan};
use jjleak_common::mapping::MappingKinds;

/// Profiles a process until it ends or `stop` is notified. Blocks.
pub(super) fn record(order: &Order, take: Take, stop: &Arc<Notify>) -> Result<(), String> {
    let outcome = session::run(plan(order), &mut Recorder { take }, stop);
    outcome.map(|_| ()).map_err(|error| chain(&error))
}

fn plan(order: &Order) -> Plan {
    let mut plan = match order.kind {
        Kind::JavaHeap => return Plan::of_java_heap(order.pid, order.snapshot),
        Kind::Pages => return Plan::of_pages(order.pid, order.snapshot),
        Kind::Allocations | Kind::Exact | Kind::MappedFiles => {
            Plan::of_process(order.pid, order.snapshot, order.settle)
        }
    };
    if order.kind == Kind::MappedFiles {
        plan.settings.mappings = Some(MappingKinds::FILES);
    }
    if order.sample_bytes > 0 {
        // The cost of sampling is not bounded: the daemon checks it in each profile.
        plan.settings.sampling = Sampling::Bytes(order.sample_bytes);
        plan.coverage.sampling = plan.settings.sampling;
    } else if let Some(percent) = order.max_overhead {
        plan.cost_bound = Some(CostBound { share: percent / 100., is_patient: true });
    }
    plan.schedule.begins_early = order.max_overhead.is_some();
    plan
}

/// Passes all profiles on.
struct Recorder {
    take: Take,
}

impl Observer for Recorder {
    type Error = Error;

    fn open(&mut self, _pid: Option<Pid>) -> Result<(), Error> {
        Ok(())
    }

    fn notify(&mut self, notice: &Notice<'_>) {
        print(&notice.to_string());
    }

    fn snapshot(&mut self, profiles: Vec<Profile>) -> bool {
        (self.take)(profiles);
        true
    }

    fn ended(&mut self, profiles: &[Profile], _following: Following) {
        (self.take)(profiles.to_vec());
    }

    fn last(&mut self, running: &[Profile], _ended: &[Profile], _following: Following) {
        (self.take)(running.to_vec());
    }

    fn finish(&mut self, _profiles: &[Profile]) -> Result<(), Error> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::profile::SourceKind;
    use crate::session::Target;

    #[test]
    fn a_plan_is_what_was_ordered() {
        let pid = Pid::new(42).unwrap();
        let order = Order {
            duration: Duration::from_secs(300),
            may_extend: true,
            kind: Kind::Allocations,
            pid,
            start_time: 1,
            settle: Duration::from_secs(30),
            snapshot: Duration::from_millis(1500),
            sample_bytes: 0,
            max_overhead: None,
        };
        let exact = plan(&order);
        assert!(matches!(&exact.target, Target::Pids(pids) if *pids == [pid]));
        assert_eq!((exact.coverage.settle, exact.schedule.interval), (order.settle, order.snapshot));
        assert_eq!((exact.coverage.sampling, exact.cost_bound), (Sampling::Off, None));
        assert!(exact.schedule.has_verdicts && !exact.schedule.begins_early);

        let mapping = plan(&Order { kind: Kind::MappedFiles, ..order });
        assert_eq!((exact.settings.mappings, mapping.settings.mappings), (None, Some(MappingKinds::FILES)));
        let pages = plan(&Order { kind: Kind::Pages, ..order });
        assert!(pages.settings.faults && !pages.schedule.has_verdicts);
        assert_eq!(pages.coverage.source, SourceKind::Growth);

        let bounded = plan(&Order { max_overhead: Some(2.5), ..order });
        assert_eq!(bounded.cost_bound, Some(CostBound { share: 0.025, is_patient: true }));
        assert!(bounded.schedule.begins_early);

        let sampled = plan(&Order { max_overhead: Some(2.5), sample_bytes: 512 << 10, ..order });
        let sampling = Sampling::Bytes(512 << 10);
        assert_eq!((sampled.coverage.sampling, sampled.settings.sampling), (sampling, sampling));
        assert_eq!(sampled.cost_bound, None);
        assert!(sampled.schedule.begins_early);
    }
}
