//! Puts the BPF objects where jjleak's source includes them from: `$OUT_DIR/jjleak.bpf.o`, and for the benchmark
//! `$OUT_DIR/jjleak-measuring.bpf.o`.
//!
//! `cargo xtask` names the objects in `JJLEAK_BPF_OBJECT` and `JJLEAK_MEASURING_OBJECT`. Without them empty files take their place,
//! so that checking, linting and unit tests need no BPF toolchain; such a jjleak says at start that it has no BPF object.

use std::{env, fs, io, path::Path};

/// Environment variable with the path of an object, and the name of its copy.
const OBJECTS: [(&str, &str); 2] =
    [("JJLEAK_BPF_OBJECT", "jjleak.bpf.o"), ("JJLEAK_MEASURING_OBJECT", "jjleak-measuring.bpf.o")];

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    // Functions that the self-test finds by name, in stripped binaries, too.
    println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol=jjleak_self_test_*");
    let out = env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("cargo sets no OUT_DIR"))?;
    OBJECTS.iter().try_for_each(|(variable, name)| embed(variable, &Path::new(&out).join(name)))
}

fn embed(variable: &str, embedded: &Path) -> io::Result<()> {
    println!("cargo:rerun-if-env-changed={variable}");
    let object = env::var_os(variable).filter(|path| !path.is_empty());
    let Some(object) = object.as_ref().map(Path::new) else {
        return fs::write(embedded, []);
    };
    println!("cargo:rerun-if-changed={}", object.display());
    fs::copy(object, embedded)
        .map(drop)
        .map_err(|error| io::Error::other(format!("cannot embed {variable}={}: {error}", object.display())))
}
