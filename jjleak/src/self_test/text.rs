//! Text of a self-test.

use std::fmt::Write;

use super::host::CacheFacts;
use super::{Requirement, SelfTest, Trial};
use crate::render::{humane_bytes, printable};

/// Renders the report.
#[must_use]
pub fn text(test: &SelfTest) -> String {
    let mut out = String::new();
    host(&mut out, test);
    let _ = writeln!(out, "\nKernel and privileges");
    for requirement in &test.requirements {
        self::requirement(&mut out, requirement);
    }
    let _ = writeln!(out, "\nTrial: a program that leaks");
    trial(&mut out, &test.trial);
    let verdict = if test.works { "jjleak works here" } else { "jjleak does NOT work here" };
    let optional = test.requirements.iter().filter(|it| !it.is_required && !it.is_there).count();
    let without = match optional {
        0 => String::new(),
        1 => ", apart from 1 optional feature".to_owned(),
        more => format!(", apart from {more} optional features"),
    };
    let _ = writeln!(out, "\n{verdict}{}", if test.works { &without } else { "" });
    out
}

// Writing to a string does not fail.

fn host(out: &mut String, test: &SelfTest) {
    let host = &test.host;
    let memory = host.memory_bytes.and_then(humane_bytes).unwrap_or_else(|| "unknown memory".to_owned());
    let _ = writeln!(out, "jjleak {} ({})", test.version, host.c_library);
    let (kernel, distribution) = (printable(&host.kernel), printable(&host.distribution));
    let _ = writeln!(out, "Linux {kernel} {}, {distribution}, {} CPUs, {memory}", host.machine, host.cpus);
    let settings: Vec<_> = host.settings.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    let _ = writeln!(out, "user {}; {}", host.user, printable(&settings.join("; ")));
    let group = &host.cgroup;
    let charged = group.memory_bytes.and_then(humane_bytes);
    let charged = charged.map(|bytes| format!(" with {bytes}")).unwrap_or_default();
    let others = if group.reads_others { "" } else { "; groups of other processes cannot be read" };
    let _ =
        writeln!(out, "control groups: {}; own: {}{charged}{others}", group.hierarchy, printable(&group.own));
    cache(out, &host.cache);
}

fn cache(out: &mut String, cache: &CacheFacts) {
    let CacheFacts { folder, why_not } = cache;
    let _ = match why_not.as_str() {
        "" => writeln!(out, "cache: {}", printable(folder)),
        why => writeln!(
            out,
            "cache: none ({} {}): unwind tables are compiled anew in each run",
            printable(folder),
            printable(why)
        ),
    };
}

fn requirement(out: &mut String, requirement: &Requirement) {
    if requirement.is_there {
        let _ = writeln!(out, "  yes  {}", requirement.name);
        return;
    }
    let optional = if requirement.is_required { "" } else { " (optional)" };
    let _ = writeln!(out, "  NO   {}{optional}: {}", requirement.name, requirement.why);
    let _ = writeln!(out, "       to do: {}", requirement.to_do);
}

fn trial(out: &mut String, trial: &Trial) {
    let measured = match trial {
        Trial::Measured(measured) => measured,
        Trial::Failed { why, to_do } => {
            let _ = writeln!(out, "  NO   {}", printable(why));
            let _ = writeln!(out, "       to do: {to_do}");
            return;
        }
    };
    let problems = measured.problems();
    for problem in &problems {
        let _ = writeln!(out, "  NO   {}", printable(problem));
    }
    if problems.is_empty() {
        let counted = measured.counted;
        let _ = writeln!(
            out,
            "  yes  {} bytes live in {} blocks, {} bytes allocated in {}: as the program has them, to the byte",
            counted.live_bytes, counted.live_objects, counted.allocated_bytes, counted.allocated_objects
        );
        let _ =
            writeln!(out, "  yes  all {} stacks are complete and named, nothing was lost", measured.stacks);
    } else {
        let _ = writeln!(out, "       to do: report this with the output of jjleak self-test --format json");
    }
    let cost =
        measured.ns_per_call.map(|ns| format!("; {ns:.0} ns per allocation or free")).unwrap_or_default();
    let _ = writeln!(out, "       took {} ms{cost}", measured.milliseconds);
}
