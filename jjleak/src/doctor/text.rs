//! Text of an examination: problems come first; what is in order takes one line.

use std::fmt::Write;

use super::advice::{Advice, base_name};
use super::generated::{Generated, NamesFrom};
use super::jvm::{ExaminedJvm, HeapProbes, Names, Tracking};
use super::module::{Examined, Unwinding};
use super::symbols::Symbols;
use super::{Examination, ExaminedProcess, HeapProfiles};
use crate::allocators::{MissingFunction, MissingReason, ProbeSite, Stepping};
use crate::attach::Check;
use crate::jcmd::Access;
use crate::processes::Pid;
use crate::render::printable;
use crate::unwind::Verification;

/// Renders the report. `archive` follows the advice to install debug packages.
#[must_use]
pub fn text(examination: &Examination, advice: &[Advice], archive: Option<&str>) -> String {
    let mut out = String::new();
    host(&mut out, &examination.host);
    if let Some(examined) = &examination.process {
        process(&mut out, examined);
        if let Some(jvm) = &examined.jvm {
            java(&mut out, jvm);
        }
        modules(&mut out, examined);
        further(&mut out, advice, archive);
    }
    out
}

// Here and below, writing to a string does not fail.

fn host(out: &mut String, checks: &[Check]) {
    let _ = writeln!(out, "Host");
    for check in checks {
        match check.outcome {
            Ok(()) => {
                let _ = writeln!(out, "  yes  {}", check.name);
            }
            Err(missing) => {
                let _ = writeln!(out, "  NO   {}: {missing}", check.name);
                let _ = writeln!(out, "       to do: {}", missing.remedy());
            }
        }
    }
}

fn process(out: &mut String, examined: &ExaminedProcess) {
    let (who, pid) = (&examined.process, examined.process.pid);
    let _ = writeln!(
        out,
        "\nProcess {pid}: {} ({})",
        printable(&who.comm),
        printable(&who.exe.to_string_lossy())
    );
    if let Some(program) = examined.narrow {
        let _ =
            writeln!(out, "  NO   64-bit program: it runs a {program}, whose allocations cannot be counted");
    } else if !examined.has_allocator() {
        let _ = writeln!(out, "  NO   allocator that jjleak knows: nothing can be counted");
    }
    for module in &examined.modules {
        allocators(out, module);
        samples(out, module, pid);
        heap_profiles(out, module);
    }
    for (path, error) in &examined.unopened {
        let _ = writeln!(out, "  NO   access to {}: {}", printable(path), printable(error));
    }
    if let Some(generated) = &examined.generated {
        self::generated(out, generated, examined.jvm.as_ref());
    }
}

fn allocators(out: &mut String, module: &Examined) {
    let name = base_name(&module.path);
    for allocator in &module.allocators {
        let is_stepped = |site: &&ProbeSite| site.placement.stepping == Stepping::SingleStep;
        let stepped = allocator.sites.iter().filter(is_stepped).count();
        let emulated = allocator.functions().filter(|site| !is_stepped(site)).count();
        let _ = writeln!(
            out,
            "  yes  {} in {}: {emulated} functions probed at emulated instructions, {stepped} single-stepped",
            allocator.family,
            printable(&name),
        );
        let inside = allocator.functions().filter(|site| site.placement.inside.is_some());
        for function in inside {
            let function = function.label();
            let _ =
                writeln!(out, "       {function}: one probe inside it instead of probes at entry and return");
        }
        let dear = allocator.sites.iter().filter(is_stepped);
        let dear: Vec<_> = dear.map(|site| site.names.join("/")).collect();
        if !dear.is_empty() {
            let _ = writeln!(out, "       single-stepped, up to ten times the cost: {}", dear.join(", "));
        }
        let unproven = allocator.missing.iter().filter(|it| matches!(it.reason, MissingReason::Unproven(_)));
        for MissingFunction { name, reason } in unproven {
            let _ = writeln!(out, "       NO   {name}: {reason}");
        }
    }
    for unfollowed in &module.unfollowed {
        let _ = writeln!(out, "  NO   allocator in {} that can be followed: {unfollowed}", printable(&name));
    }
}

fn heap_profiles(out: &mut String, module: &Examined) {
    let name = base_name(&module.path);
    for profiles in &module.heap_profiles {
        let answer = match profiles {
            HeapProfiles::Active(..) => "yes",
            HeapProfiles::Possible(_) | HeapProfiles::NotBuilt(_) => "no ",
        };
        let _ = writeln!(
            out,
            "  {answer}  heap profiles by the allocator in {} itself: {profiles}",
            printable(&name)
        );
    }
}

fn samples(out: &mut String, module: &Examined, pid: Pid) {
    let name = base_name(&module.path);
    for sampler in &module.samples.profiled {
        let _ = writeln!(
            out,
            "  yes  samples of {} in {}: {} probes; to use them: jjleak --sampled -p {pid}",
            sampler.family,
            printable(&name),
            sampler.sites.len(),
        );
    }
    for unfollowed in &module.samples.unfollowed {
        let _ = writeln!(out, "  NO   samples in {}: {unfollowed}", printable(&name));
    }
}

fn generated(out: &mut String, generated: &Generated, jvm: Option<&ExaminedJvm>) {
    let (kib, map) = (generated.bytes >> 10, printable(&generated.perf_map));
    let _ = write!(out, "  -    {kib} KiB of generated code: ");
    let _ = match (jvm.map(|jvm| &jvm.names), &generated.names) {
        (Some(Names::All | Names::Without(_)), _) => writeln!(out, "the JVM's, see below"),
        (_, NamesFrom::Nowhere) => {
            writeln!(out, "unwound by frame pointers, without names: {map} does not exist")
        }
        (_, NamesFrom::Map(names, 0)) => {
            writeln!(out, "unwound by frame pointers; {map} has {names} names")
        }
        (_, NamesFrom::Map(names, bad)) => {
            writeln!(out, "unwound by frame pointers; {map} has {names} names, and {bad} invalid lines")
        }
        (_, NamesFrom::Refused(why)) => {
            writeln!(out, "unwound by frame pointers, without names: {map} is not read: {why}")
        }
    };
}

fn java(out: &mut String, jvm: &ExaminedJvm) {
    let _ = writeln!(out, "\nJava");
    let by = if jvm.vendor.is_empty() { String::new() } else { format!(" by {}", printable(&jvm.vendor)) };
    match &jvm.release {
        Ok(release) => {
            let collector = if jvm.collector.is_empty() { "unknown" } else { jvm.collector };
            let _ = writeln!(out, "  yes  JDK {}{by}, {collector} collector", printable(release));
        }
        Err(error) => {
            let _ = writeln!(out, "  NO   version of this JVM{by}: {}", printable(error));
        }
    }
    let _ = match &jvm.names {
        Names::All => {
            writeln!(
                out,
                "  yes  methods, inlined methods and lines: from the JVM's own structures; no option is needed"
            )
        }
        Names::Without(lacking) => writeln!(
            out,
            "  yes  methods: from the JVM's own structures; no option is needed\n  NO   {lacking}: this version is only \
             partly supported"
        ),
        Names::Unreadable(error) => {
            writeln!(
                out,
                "  NO   methods, except those of a perf map, without inlined methods: {}",
                printable(error)
            )
        }
    };
    let _ = match &jvm.heap {
        HeapProbes::Found => {
            writeln!(
                out,
                "  yes  who allocates in the Java heap (jjleak heap): from the JVM's functions; no option is needed"
            )
        }
        HeapProbes::TooOld(version) => {
            writeln!(
                out,
                "  NO   who allocates in the Java heap (jjleak heap): JDK {version} does not say which thread allocates"
            )
        }
        HeapProbes::NoSymbols => writeln!(
            out,
            "  NO   who allocates in the Java heap (jjleak heap): libjvm.so has no symbols of the functions that announce objects; its \
             debug file has them"
        ),
    };
    if !jvm.flags.is_empty() {
        let flag = |(flag, is_set): &(String, bool)| {
            if *is_set { flag.clone() } else { format!("{flag} by default") }
        };
        let flags: Vec<_> = jvm.flags.iter().map(flag).collect();
        let _ = writeln!(out, "  -    {}", flags.join(", "));
    }
    let _ = match &jvm.tracking {
        Tracking::Off => {
            writeln!(out, "  -    native memory tracking (NMT) is off; jjleak does not need it")
        }
        Tracking::On(mode) => {
            writeln!(out, "  -    native memory tracking (NMT) is on ({})", printable(mode))
        }
        Tracking::Unknown => {
            writeln!(out, "  -    whether native memory tracking (NMT) is on is unknown")
        }
    };
    let names: Vec<_> = jvm.libraries.iter().map(|path| base_name(path)).collect();
    let others = if names.is_empty() { String::new() } else { format!(" and {}", names.join(", ")) };
    let _ = writeln!(
        out,
        "       NMT never counts what libraries allocate themselves, but jjleak does: those of the JDK, such as libzip{}",
        printable(&others)
    );
    let _ = match jvm.asking {
        Ok(Access::SocketOrSignal) => Ok(()),
        Ok(Access::Socket(why)) => {
            writeln!(out, "  -    --refresh-perf-map sends a request only if it already listens: {why}")
        }
        Err(why) => writeln!(out, "  -    --refresh-perf-map sends no request: {why}"),
    };
}

fn modules(out: &mut String, examined: &ExaminedProcess) {
    let rows: Vec<[String; 4]> = examined
        .modules
        .iter()
        .map(|module| {
            let path = printable(&module.path.to_string_lossy()).into_owned();
            [stacks(&module.unwinding), verified(&module.unwinding), names(&module.symbols), path]
        })
        .collect();
    let head = ["stacks", "verified", "names", "file"].map(str::to_owned);
    let width = |column: usize| {
        rows.iter().chain([&head]).map(|row| row[column].chars().count()).max().unwrap_or_default()
    };
    let (first, second, third) = (width(0), width(1), width(2));
    let _ = writeln!(
        out,
        "\nCode (stacks: share of code with whole stacks; verified: function starts that the code confirms; names: named functions)"
    );
    for [stacks, verified, names, file] in [&head].into_iter().chain(&rows) {
        let _ = writeln!(out, "  {stacks:first$}  {verified:second$}  {names:third$}  {file}");
    }
    for Examined { path, unwinding, .. } in &examined.modules {
        if let Unwinding::FramePointers(why) = unwinding {
            let name = base_name(path);
            let _ = writeln!(out, "  {}: only frame pointers: {}", printable(&name), printable(why));
        }
    }
}

fn verified(unwinding: &Unwinding) -> String {
    match unwinding {
        Unwinding::Rows { verification: Verification { functions, symbols, .. }, .. } => {
            let (agreeing, compared) =
                (functions.agreeing + symbols.agreeing, functions.compared + symbols.compared);
            format!("{agreeing} of {compared}")
        }
        Unwinding::FramePointers(_) => "-".to_owned(),
    }
}

fn stacks(unwinding: &Unwinding) -> String {
    /// From this share on, code that rows cannot express is ignored: it is a few instructions of startup code.
    const AS_GOOD_AS_ALL: u64 = 990_000;
    match unwinding {
        Unwinding::Rows { unsupported_millionths, .. } => {
            let supported = 1_000_000 - unsupported_millionths;
            if supported >= AS_GOOD_AS_ALL {
                return "whole".to_owned();
            }
            format!("{}.{} %", supported / 10_000, supported / 1_000 % 10)
        }
        Unwinding::FramePointers(_) => "FRAME POINTERS".to_owned(),
    }
}

fn names(symbols: &Symbols) -> String {
    let names = match (symbols.are_all(), symbols.exported) {
        (true, _) => "all",
        (false, true) => "EXPORTED ONLY",
        (false, false) => "NONE",
    };
    let lines = if symbols.have_lines() { ", lines" } else { "" };
    let source = if symbols.debug_file.is_some() { " (debug file)" } else { "" };
    format!("{names}{lines}{source}")
}

fn further(out: &mut String, advice: &[Advice], archive: Option<&str>) {
    if advice.is_empty() {
        let _ = writeln!(out, "\nNothing is missing: stacks are whole, and functions have names.");
        return;
    }
    let _ = writeln!(out, "\nTo see more");
    for Advice { remedy, gain } in advice {
        let _ = writeln!(out, "  {}\n      {}", printable(remedy), printable(gain));
    }
    if let Some(archive) = archive.filter(|_| advice.iter().any(|it| it.remedy.contains("-dbgsym"))) {
        let _ = writeln!(out, "  {archive}");
    }
}
