//! Start of a run: attaches to the processes.

use super::agent_loading::load;
use super::watch::Watch;
use super::{Error, Notice, Observer, Plan, Session, Step, Summary, Target};
use crate::attach::{self, Following};
use crate::error_chain::chain;
use crate::processes::{Launch, Pid, Process, Wanted};

/// Fails if the kernel or the privileges do not suffice for the plan.
pub(super) fn preflight(plan: &Plan) -> Result<(), Error> {
    attach::preflight().map_err(attach::Error::from)?;
    if plan.settings.following != Following::Nobody {
        attach::preflight_following().map_err(attach::Error::from)?;
    }
    Ok(())
}

/// Fails if a PID is not that of a process.
fn check(pids: &[Pid]) -> Result<(), Error> {
    for pid in pids {
        Process::open(*pid)?;
    }
    Ok(())
}

/// Attaches to the target. Counting has begun when this returns.
pub(super) fn begin<O: Observer>(plan: Plan, observer: &mut O) -> Result<Session<'_, O>, O::Error> {
    let Plan {
        target,
        settings,
        coverage,
        allocators,
        cost_bound,
        agent,
        asks_for_perf_maps,
        baseline,
        listing,
        schedule,
    } = plan;
    let wanted = match &target {
        Target::Named(name) => Wanted::Named(name.clone()),
        _ => Wanted::All,
    };
    observer.progress(Some(Step::Attaching));
    let mut launched = None;
    let mut watch = match target {
        Target::Pids(pids) => {
            check(&pids)?;
            observer.open(<[Pid; 1]>::try_from(&*pids).ok().map(|[pid]| pid))?;
            let mut watch = Watch::new(settings, coverage, listing, wanted, allocators, &pids)?;
            if let Some(agent) = agent {
                for pid in &pids {
                    observer.notify(&Notice::Loading(*pid, &agent.library));
                    if let Some(coverage) = load(*pid, &agent).map_err(Error::from)? {
                        observer.notify(&Notice::Loaded(*pid, coverage.sampled, coverage.others));
                    }
                }
                watch.keep_agent(agent);
            }
            if cost_bound.is_some_and(|bound| !bound.is_patient) {
                watch.rest_at_first()?;
            }
            watch.attach(&pids)?;
            watch
        }
        Target::Command { words, streams, variables } => {
            let mut watch = Watch::new(settings, coverage, listing, wanted, allocators, &[])?;
            let mut launch = Launch::start(&words, streams, variables).map_err(Error::from)?;
            observer.open(Some(launch.pid()))?;
            watch.launch(&mut launch)?;
            launched = Some(launch);
            watch
        }
        Target::Named(_) | Target::Everything => {
            observer.open(None)?;
            let mut watch = Watch::new(settings, coverage, listing, wanted, allocators, &[])?;
            watch.begin_attaching()?;
            watch
        }
    };
    if let Some(bound) = cost_bound {
        match watch.keep_within(bound) {
            Err(error) if bound.is_patient => {
                let why = chain(&error);
                tracing::warn!("{why}: everything is counted until a profile shows that it costs too much");
            }
            outcome => outcome?,
        }
    }
    // Only after the bound is set: otherwise the command pays for all that it does before.
    if let Some(launch) = launched {
        watch.release(launch)?;
    }
    if asks_for_perf_maps {
        watch.ask_for_perf_maps();
    }
    let mut session = Session {
        hints: watch.attachment_mut().hints().map_err(Error::from)?,
        events: watch.attachment_mut().events().map_err(Error::from)?,
        watch,
        observer,
        baseline,
        schedule,
        closed: Vec::new(),
        endings: Vec::new(),
        ended: 0,
        summary: Summary::default(),
    };
    session.attach_to_running()?;
    Ok(session)
}
