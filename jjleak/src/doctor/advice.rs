//! Advice on how to make a profile more complete.

use std::collections::BTreeSet;
use std::path::Path;

use super::ExaminedProcess;
use super::generated::NamesFrom;
use super::jvm::Names;
use super::module::{Examined, Unwinding};
use super::packages::Packages;

/// One piece of advice.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Advice {
    /// The action: a command, or a sentence.
    pub remedy: String,
    /// Its benefit.
    pub gain: String,
}

/// Returns the advice for a process.
#[must_use]
pub fn advise(examined: &ExaminedProcess, packages: &Packages) -> Vec<Advice> {
    let mut advice = names(examined, packages);
    let unwound_otherwise: Vec<_> = examined
        .modules
        .iter()
        .filter(|module| matches!(module.unwinding, Unwinding::FramePointers(_)))
        .map(|module| base_name(&module.path))
        .collect();
    if !unwound_otherwise.is_empty() {
        advice.push(Advice {
            remedy: "rebuild with -fasynchronous-unwind-tables, or with -fno-omit-frame-pointer".to_owned(),
            gain: format!("whole stacks through {}", unwound_otherwise.join(", ")),
        });
    }
    for module in examined.modules.iter().filter(|module| !module.unfollowed.is_empty()) {
        let name = base_name(&module.path);
        advice.push(Advice {
            remedy: format!("install the debug symbols of {name}, or name its functions (--allocators)"),
            gain: format!("allocations of {name} that are not counted now"),
        });
    }
    advice.extend(names_of_generated(examined));
    advice
}

/// Advises a perf map for generated code that nothing else names.
fn names_of_generated(examined: &ExaminedProcess) -> Option<Advice> {
    let generated = examined.generated.as_ref().filter(|generated| generated.names == NamesFrom::Nowhere)?;
    let remedy = match &examined.jvm {
        Some(jvm) if !matches!(jvm.names, Names::Unreadable(_)) => return None,
        Some(_) => format!("jcmd {} Compiler.perfmap, or jjleak --refresh-perf-map", examined.process.pid),
        None => "have it write a perf map: node --perf-basic-prof, DOTNET_PerfMapEnabled=1, python3 -X perf"
            .to_owned(),
    };
    Some(Advice { remedy, gain: format!("names of {} KiB of generated code", generated.bytes >> 10) })
}

/// Advises debug information; one command installs all that is available in packages.
fn names(examined: &ExaminedProcess, packages: &Packages) -> Vec<Advice> {
    let lacking = examined.modules.iter().filter(|module| !module.symbols.are_all());
    let (mut wanted, mut files, mut elsewhere) = (BTreeSet::new(), Vec::new(), Vec::new());
    for module in lacking {
        let package = examined.shares_files.then(|| packages.debug_package(&module.path)).flatten();
        match package {
            Some(package) => {
                wanted.insert(package);
                files.push(base_name(&module.path));
            }
            None => elsewhere.push(named(module)),
        }
    }
    let gain = |files: &[String]| format!("names of all functions in {}", files.join(", "));
    let mut advice = Vec::new();
    if !wanted.is_empty() {
        let remedy = packages.install(&wanted.into_iter().collect::<Vec<_>>().join(" "));
        advice.push(Advice { remedy, gain: gain(&files) });
    }
    if !elsewhere.is_empty() {
        let remedy = "put their debug files under /usr/lib/debug/.build-id (see debuginfod-find), or do not strip them";
        advice.push(Advice { remedy: remedy.to_owned(), gain: gain(&elsewhere) });
    }
    advice
}

fn named(module: &Examined) -> String {
    let name = base_name(&module.path);
    if module.build_id.is_empty() { name } else { format!("{name} (build ID {})", module.build_id) }
}

pub(super) fn base_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
