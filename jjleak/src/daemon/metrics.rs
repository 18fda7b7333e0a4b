//! Metrics in Prometheus' text format, version 0.0.4. Pure except for the daemon's own resource usage.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::fs;

use super::core::Core;
use super::decide::State;
use super::dumps::{Dumped, Source};
use super::history::{Costs, History};
use super::log::suppressed;
use super::profile::Finding;
use super::watch::Watched;
use crate::processes::{Pid, Process};
use crate::profile::{MemoryKind, SourceKind};
use crate::push::Status;

/// A metric with its help, type and samples.
struct Family<'a> {
    out: &'a mut String,
    name: &'static str,
}

impl<'a> Family<'a> {
    fn new(out: &'a mut String, name: &'static str, kind: &str, help: &str) -> Self {
        // Writing to a String does not fail.
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        Self { out, name }
    }

    fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) -> &mut Self {
        let labels: Vec<_> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.out, "{}{labels} {value}", self.name);
        self
    }
}

/// Escapes a label value.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Metrics of the watched processes, and of the daemon.
pub(super) fn of_processes(core: &Core) -> String {
    let mut text = String::new();
    let out = &mut text;
    Family::new(out, "jjleak_build_info", "gauge", "Version of jjleak.")
        .sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    states(core, out);
    let seen = |out: &mut String, name, help, value: fn(&Watched) -> Option<f64>| {
        let mut family = Family::new(out, name, "gauge", help);
        for watched in core.watcher.iter() {
            let (pid, comm) = (watched.process.pid.to_string(), watched.process.comm.as_str());
            if let Some(value) = value(watched) {
                family.sample(&[("pid", &pid), ("comm", comm)], value);
            }
        }
    };
    seen(out, "jjleak_process_resident_bytes", "Resident memory.", |of| Some(float(of.case.last().resident)));
    seen(out, "jjleak_process_cgroup_bytes", "Memory of the control group.", |of| {
        of.case.last().group.map(float)
    });
    let help = "Memory left within the nearest limit.";
    seen(out, "jjleak_process_available_bytes", help, |of| {
        of.case.last().limit.map(|limit| float(limit.available))
    });
    let help = "Current growth of resident memory; 0 without growth.";
    seen(out, "jjleak_process_growth_bytes_per_second", help, |of| Some(of.case.trend().growth()));
    let help = "Share of the last minute for which tasks of the control group waited for memory.";
    seen(out, "jjleak_process_memory_pressure_ratio", help, |of| {
        of.case.last().pressure.map(|percent| percent / 100.)
    });
    each_state(core, out);
    limits(core, out);
    findings(core, out);
    growth(core, out);
    own(core, out);
    text
}

fn states(core: &Core, out: &mut String) {
    let names = ["watching", "suspected", "profiling", "stuck", "back_off"];
    let mut processes = Family::new(out, "jjleak_processes", "gauge", "Watched processes by state.");
    for name in names {
        let is_so = |state: State| state.name() == name;
        processes.sample(
            &[("state", name)],
            core.watcher.iter().filter(|watched| is_so(watched.case.state())).count(),
        );
    }
    Family::new(
        out,
        "jjleak_processes_turned_away",
        "gauge",
        "Processes that match but exceed watch.max_processes.",
    )
    .sample(&[], core.watcher.turned_away());
    let help = "Processes that are not watched because reading what they map takes too long.";
    Family::new(out, "jjleak_processes_silent", "gauge", help).sample(&[], core.watcher.silent());
}

/// State of each process.
fn each_state(core: &Core, out: &mut String) {
    let mut states = Family::new(out, "jjleak_process_state", "gauge", "1 for the state of the process.");
    for watched in core.watcher.iter() {
        let (pid, state) = (watched.process.pid.to_string(), watched.case.state().name());
        states.sample(&[("pid", &pid), ("comm", &watched.process.comm), ("state", state)], 1);
    }
}

/// Limit of each process.
fn limits(core: &Core, out: &mut String) {
    let help = "The memory limit that leaves the least, of a control group or the machine.";
    let mut limits = Family::new(out, "jjleak_process_limit_bytes", "gauge", help);
    for watched in core.watcher.iter() {
        let Some(limit) = watched.case.last().limit else { continue };
        let (pid, kind) = (watched.process.pid.to_string(), limit_of(limit.is_cgroup));
        limits.sample(&[("pid", &pid), ("comm", &watched.process.comm), ("of", kind)], limit.limit);
    }
}

/// Kind of a limit, for programs.
pub(super) const fn limit_of(is_cgroup: bool) -> &'static str {
    let kind = if is_cgroup { MemoryKind::Cgroup } else { MemoryKind::Ram };
    kind.name()
}

#[expect(clippy::cast_precision_loss, reason = "memory is less than 2^53 bytes")]
const fn float(bytes: u64) -> f64 {
    bytes as f64
}

/// Watched processes with something known of each.
fn found<'a>(core: &'a Core, known: impl Fn(Pid) -> Option<&'a Finding>) -> Vec<Found<'a>> {
    let found = |watched: &'a Watched| {
        let Process { pid, comm, .. } = &watched.process;
        Some((pid.to_string(), comm.as_str(), known(*pid)?))
    };
    core.watcher.iter().filter_map(found).collect()
}

fn findings(core: &Core, out: &mut String) {
    let found = found(core, |pid| core.findings.get(&pid));
    let help = "Leaking call sites, by the last profile.";
    let mut sites = Family::new(out, "jjleak_process_leaking_call_sites", "gauge", help);
    for (pid, comm, finding) in &found {
        sites.sample(&[("pid", pid), ("comm", comm)], finding.leaking);
    }
    let help = "Total leak rate of these call sites.";
    let mut rates = Family::new(out, "jjleak_process_leak_bytes_per_second", "gauge", help);
    for (pid, comm, finding) in &found {
        rates.sample(&[("pid", pid), ("comm", comm)], finding.leak_rate);
    }
    let help = "Live bytes of what was allocated while the last profile was taken.";
    let mut live = Family::new(out, "jjleak_process_live_bytes", "gauge", help);
    for (pid, comm, finding) in &found {
        live.sample(&[("pid", pid), ("comm", comm)], finding.live_bytes);
    }
    let help = "Whether the figures of the last profile are estimates.";
    let mut estimates = Family::new(out, "jjleak_process_profile_estimated", "gauge", help);
    for (pid, comm, finding) in &found {
        estimates.sample(&[("pid", pid), ("comm", comm)], u8::from(finding.estimate.is_some()));
    }
    costs(&found, out);
    let help = "Whether the last profile was long and complete enough for a verdict on leaks.";
    let mut judged = Family::new(out, "jjleak_process_profile_judged", "gauge", help);
    for (pid, comm, finding) in &found {
        judged.sample(&[("pid", pid), ("comm", comm)], u8::from(finding.is_last_judged));
    }
    let help = "Losses of the last profile, by counter.";
    losses(&found, "jjleak_process_lost", help, out);
    let others = |source| self::found(core, |pid| core.others.get(&(pid, source)));
    java_heaps(&others(SourceKind::JavaHeap), out);
    let help = "Losses of the last profile of pages that became resident, by counter.";
    losses(&others(SourceKind::Growth), "jjleak_process_growth_lost", help, out);
}

/// Allocation in Java heaps.
fn java_heaps(found: &[Found<'_>], out: &mut String) {
    let help = "Bytes allocated per second in the Java heap, by its last profile.";
    let name = "jjleak_process_java_heap_allocated_bytes_per_second";
    let mut rates = Family::new(out, name, "gauge", help);
    for (pid, comm, heap) in found {
        rates.sample(&[("pid", pid), ("comm", comm)], heap.allocation_rate);
    }
    let help = "Losses of the last profile of the Java heap, by counter.";
    losses(found, "jjleak_process_java_heap_lost", help, out);
}

fn losses(found: &[Found<'_>], name: &'static str, help: &str, out: &mut String) {
    let mut lost = Family::new(out, name, "gauge", help);
    for (pid, comm, finding) in found {
        for (counter, count) in &finding.lost {
            lost.sample(&[("pid", pid), ("comm", comm), ("counter", counter)], count);
        }
    }
}

/// Resident memory by use when the last profile ended, and the causes of growth while it was taken.
fn growth(core: &Core, out: &mut String) {
    let known = |watched: &'_ Watched| core.grown.get(&watched.process.pid);
    let help = "Resident memory by use, when the last profile ended.";
    let mut rows = Family::new(out, "jjleak_process_memory_bytes", "gauge", help);
    for (watched, grown) in core.watcher.iter().filter_map(|watched| Some((watched, known(watched)?))) {
        let pid = watched.process.pid.to_string();
        for (kind, bytes) in &grown.now {
            rows.sample(&[("pid", &pid), ("comm", &watched.process.comm), ("kind", kind.name())], bytes);
        }
    }
    let help = "Growth of resident memory that each cause explains, while the last profile was taken.";
    let mut causes = Family::new(out, "jjleak_process_growth_cause_bytes", "gauge", help);
    for (watched, grown) in core.watcher.iter().filter_map(|watched| Some((watched, known(watched)?))) {
        let pid = watched.process.pid.to_string();
        for found in &grown.findings {
            let cause = found.cause.name();
            causes.sample(&[("pid", &pid), ("comm", &watched.process.comm), ("cause", cause)], found.bytes);
        }
    }
}

/// PID and name of a process, and the findings.
type Found<'a> = (String, &'a str, &'a Finding);

/// Overhead of profiling, by the last profile of each process.
fn costs(found: &[Found<'_>], out: &mut String) {
    let mut each = |name, help, value: fn(&Costs) -> Option<f64>| {
        let mut family = Family::new(out, name, "gauge", help);
        for (pid, comm, finding) in found {
            if let Some(value) = finding.cost.as_ref().and_then(value) {
                family.sample(&[("pid", pid), ("comm", comm)], value);
            }
        }
    };
    let help = "Allocations and frees per second, by the last profile.";
    each("jjleak_process_profile_calls_per_second", help, |cost| Some(cost.calls_per_s));
    let help = "Estimated cost of profiling per call.";
    each("jjleak_process_profile_call_seconds", help, |cost| Some(cost.ns_per_call? / 1e9));
    let help = "Estimated share of the process's CPU time taken by profiling.";
    each("jjleak_process_profile_cpu_ratio", help, |cost| cost.of_cpu);
}

/// Activities and resource usage of the daemon.
fn own(core: &Core, out: &mut String) {
    Family::new(out, "jjleak_looks_total", "counter", "Scans of all watched processes.")
        .sample(&[], core.scans);
    Family::new(out, "jjleak_profiles_total", "counter", "Profiles started.")
        .sample(&[], core.profiles_begun);
    Family::new(out, "jjleak_profiles_failed_total", "counter", "Profiles that failed.")
        .sample(&[], core.profiles_failed);
    let help = "Profiling threads that hang.";
    Family::new(out, "jjleak_profiles_stuck", "gauge", help).sample(&[], core.stuck.len());
    Family::new(
        out,
        "jjleak_log_messages_suppressed_total",
        "counter",
        "Log messages suppressed by the rate limit.",
    )
    .sample(&[], suppressed());
    if let Some((cpu, resident)) = cost() {
        Family::new(out, "process_cpu_seconds_total", "counter", "CPU time.").sample(&[], cpu);
        Family::new(out, "process_resident_memory_bytes", "gauge", "Resident memory.").sample(&[], resident);
    }
}

/// Metrics of the stored profiles.
pub(super) fn of_history(history: &History) -> String {
    let mut text = String::new();
    let out = &mut text;
    let (lost, error) = history.last_error();
    Family::new(out, "jjleak_history_profiles", "gauge", "Stored profiles.")
        .sample(&[], history.entries().count());
    Family::new(out, "jjleak_history_bytes", "gauge", "Size of the stored profiles.")
        .sample(&[], history.bytes());
    Family::new(out, "jjleak_history_lost_total", "counter", "Profiles that could not be stored.")
        .sample(&[], lost);
    Family::new(out, "jjleak_history_failing", "gauge", "Whether the last profile could not be stored.")
        .sample(&[], u8::from(error.is_some()));
    text
}

/// Metrics of heap profiles that programs write themselves.
pub(super) fn of_dumps(sources: &BTreeMap<String, Source>) -> String {
    let mut text = String::new();
    let out = &mut text;
    let mut each = |name, kind, help, value: fn(&Source) -> u64| {
        let mut family = Family::new(out, name, kind, help);
        for (from, source) in sources {
            family.sample(&[("from", from)], value(source));
        }
    };
    each("jjleak_dumps_read_total", "counter", "Heap profiles read, by their source.", |of| of.read);
    each("jjleak_dumps_failed_total", "counter", "Heap profiles that could not be read.", |of| of.failed);
    let help = "Whether the last heap profile could not be read.";
    each("jjleak_dumps_failing", "gauge", help, |of| of.error.is_some().into());
    let mut each = |name, help, value: fn(&Dumped) -> f64| {
        let mut family = Family::new(out, name, "gauge", help);
        for (from, source) in sources {
            for dumped in source.processes.values() {
                let pid = dumped.pid.to_string();
                family.sample(&[("from", from), ("pid", &pid), ("comm", &dumped.comm)], value(dumped));
            }
        }
    };
    each("jjleak_dumps_live_bytes", "Live bytes of the last heap profile.", |of| float(of.live_bytes));
    let help = "Leaking call sites, by all heap profiles of the process.";
    each("jjleak_dumps_leaking_call_sites", help, |of| float(of.leaking as u64));
    let help = "Total leak rate of these call sites.";
    each("jjleak_dumps_leak_bytes_per_second", help, |of| of.leak_bytes_per_s);
    text
}

/// Metrics of the pusher.
pub(super) fn of_pushing(status: &Status) -> String {
    let mut text = String::new();
    let out = &mut text;
    let mut add = |name, kind, help, value: u64| {
        Family::new(out, name, kind, help).sample(&[], value);
    };
    add("jjleak_push_waiting", "gauge", "Profiles queued to be sent.", status.waiting as u64);
    add("jjleak_push_waiting_bytes", "gauge", "Size of the queued profiles.", status.waiting_bytes);
    add("jjleak_push_sent_total", "counter", "Profiles that were sent.", status.sent);
    add(
        "jjleak_push_refused_total",
        "counter",
        "Profiles that the server will never accept.",
        status.refused,
    );
    add("jjleak_push_dropped_total", "counter", "Profiles that did not fit into the queue.", status.dropped);
    add("jjleak_push_failures_total", "counter", "Failed attempts that will be retried.", status.failures);
    text
}

/// CPU time in seconds and resident bytes of the daemon itself: fields 14, 15 and 24 of `/proc/self/stat` (proc(5)).
fn cost() -> Option<(f64, u64)> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<_> = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let ticks = u32::try_from(field(14)? + field(15)?).ok()?;
    Some((f64::from(ticks) / 100., field(24)?.checked_mul(4096)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_hold_whatever_a_process_calls_itself() {
        let mut text = String::new();
        Family::new(&mut text, "m", "gauge", "Help.").sample(&[("comm", "a\"b\\c\nd")], 1);
        assert_eq!(text, "# HELP m Help.\n# TYPE m gauge\nm{comm=\"a\\\"b\\\\c\\nd\"} 1\n");
    }

    #[test]
    fn profiling_costs_are_in_base_units() {
        let costs = |ns_per_call| Costs { calls_per_s: 2_000., ns_per_call, of_cpu: Some(0.25) };
        let (mut known, mut unknown) = (finding(), finding());
        (known.cost, unknown.cost) = (Some(costs(Some(1_500.))), None);
        let mut text = String::new();
        super::costs(&[("7".to_owned(), "java", &known), ("8".to_owned(), "perl", &unknown)], &mut text);
        let samples: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            samples,
            [
                "jjleak_process_profile_calls_per_second{pid=\"7\",comm=\"java\"} 2000",
                "jjleak_process_profile_call_seconds{pid=\"7\",comm=\"java\"} 0.0000015",
                "jjleak_process_profile_cpu_ratio{pid=\"7\",comm=\"java\"} 0.25",
            ]
        );
    }

    #[test]
    fn java_heaps_have_their_rates_and_losses() {
        let mut heap = finding();
        (heap.allocation_rate, heap.lost) = (1.5e6, vec![("java_object_lost".to_owned(), 3)]);
        let mut text = String::new();
        java_heaps(&[("7".to_owned(), "java", &heap)], &mut text);
        let samples: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            samples,
            [
                "jjleak_process_java_heap_allocated_bytes_per_second{pid=\"7\",comm=\"java\"} 1500000",
                "jjleak_process_java_heap_lost{pid=\"7\",comm=\"java\",counter=\"java_object_lost\"} 3",
            ]
        );
    }

    fn finding() -> Finding {
        let profile = crate::render::sample::profile();
        let id = crate::daemon::history::Id::of(&profile);
        Finding::of(Pid::new(7).unwrap(), &crate::daemon::history::Entry::of(id, &profile, "for a test"))
    }

    #[test]
    fn the_daemons_own_cost_is_known() {
        let (cpu, resident) = cost().unwrap();
        assert!(cpu >= 0. && resident > 1 << 20);
    }
}
