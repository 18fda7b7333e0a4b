//! Puts the BPF object where jjleak's source includes it from: `$OUT_DIR/jjleak.bpf.o`.
//!
//! `cargo xtask build` names the object in `JJLEAK_BPF_OBJECT`. Without it an empty file takes its place, so that
//! checking, linting and unit tests need no BPF toolchain; such a jjleak says at start that it has no BPF object.

use std::{env, fs, io, path::Path};

const OBJECT_VARIABLE: &str = "JJLEAK_BPF_OBJECT";

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed={OBJECT_VARIABLE}");
    let out = env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("cargo sets no OUT_DIR"))?;
    let embedded = Path::new(&out).join("jjleak.bpf.o");
    let object = env::var_os(OBJECT_VARIABLE).filter(|path| !path.is_empty());
    let Some(object) = object.as_ref().map(Path::new) else {
        return fs::write(embedded, []);
    };
    println!("cargo:rerun-if-changed={}", object.display());
    fs::copy(object, embedded).map(drop).map_err(|error| {
        io::Error::other(format!("cannot embed {OBJECT_VARIABLE}={}: {error}", object.display()))
    })
}
