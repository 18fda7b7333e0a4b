//! Compiles the fixtures, each once per run.

mod ledgers;
mod programs;
mod stacks;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

pub(crate) use self::ledgers::{LedgerBuild, cplusplus_ledger, ledger, ledger_as, rust_ledger};
pub(crate) use self::programs::{
    Wrapper, announced, announced_library, announced_points, arenas, bare, called, clock, differential,
    early, every_new, every_way, every_way_of_musl, exhaustion, fibres, filtered, headless, hostile, jit,
    kept_by_library, late_library, late_library_with_its_own_malloc, leaky, loading_every_new, loading_late,
    map_files, multitude, names, narrow, orphan, paced, paths, sampled, sampled_soak, sampler_to_preload,
    sampling_in_rust, silent, static_arenas, static_early, static_jit, static_paced, tail_calls, touched,
    trim, unprobeable, verdicts, wrapper,
};
pub(crate) use self::stacks::{
    Build, absent, binding, deepest, garbage, generated, just_mapped, launcher, loading, replacing,
    rust_hello, rust_hello_with_lines_alone, stacks, stacks_library, stacks_linked, ways, without_rows,
    zeros,
};

/// Copies a program into a folder. Uses cp, because a file written by this process may be held open for a moment by a child that
/// another test is just starting; executing it would then fail with `ETXTBSY`.
pub(crate) fn copy(program: &Path, folder: &Path) -> PathBuf {
    let status = Command::new("cp").args([program, folder]).status().unwrap();
    assert!(status.success(), "cannot copy {}", program.display());
    folder.join(program.file_name().unwrap())
}

/// Flags that the fixtures' comments require: optimized, but with frame pointers and all calls to the allocator as written.
const BOOKKEEPING: &[&str] =
    &["-std=c11", "-D_GNU_SOURCE", "-g", "-fno-omit-frame-pointer", "-fno-builtin", "-pthread"];

fn compile(name: &str, sources: &[String], flags: &[&str]) -> PathBuf {
    compile_with("cc", name, sources, flags)
}

/// Compiles each program once per run, even if tests ask for it at the same time: a program must not be replaced while it runs.
fn compile_with(compiler: &str, name: &str, sources: &[String], flags: &[&str]) -> PathBuf {
    static BUILT: Mutex<BTreeMap<String, Arc<OnceLock<PathBuf>>>> = Mutex::new(BTreeMap::new());
    let program = {
        let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
        built.entry(name.to_owned()).or_default().clone()
    };
    program.get_or_init(|| build(compiler, name, sources, flags)).clone()
}

/// Compiles under a temporary name and renames, so that concurrent test runs never see a partial program.
fn build(compiler: &str, name: &str, sources: &[String], flags: &[&str]) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").canonicalize().unwrap();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = folder.join(name);
    let unfinished = folder.join(format!("{name}-{}", std::process::id()));
    let output = Command::new(compiler)
        .args(["-O2", "-Wall", "-Wextra"])
        .args(flags)
        .args(sources.iter().map(|source| fixtures.join(source)))
        .arg("-o")
        .arg(&unfinished)
        .output()
        .unwrap_or_else(|error| panic!("cannot run {compiler}: {error}"));
    assert!(output.status.success(), "cannot compile {name}:\n{}", String::from_utf8_lossy(&output.stderr));
    std::fs::rename(unfinished, &program).unwrap();
    program
}
