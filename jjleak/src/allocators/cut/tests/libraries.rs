//! Tests with real C libraries: the machine's own, and those in the folder named by `JJLEAK_LIBCS` (`libc6` and `musl` of several
//! releases, unpacked).

use std::{env, fs, path::PathBuf};

use super::*;

pub(super) fn libraries() -> Vec<PathBuf> {
    let folder = env::var_os("JJLEAK_LIBCS").map(|folder| fs::read_dir(folder).unwrap());
    let named = folder.into_iter().flatten().map(|entry| entry.unwrap().path());
    let own = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib/ld-musl-x86_64.so.1"].map(PathBuf::from);
    own.into_iter().filter(|path| path.exists()).chain(named).collect()
}

#[test]
fn a_c_library_whose_malloc_allows_a_proof_is_probed_inside_and_no_other() {
    for path in libraries() {
        let elf = fs::read(&path).unwrap();
        let inside: Vec<_> = find_sites(&elf, Hints { following: CallFollowing::Inside, ..Hints::default() })
            .unwrap()
            .profiled
            .into_iter()
            .flat_map(|it| it.sites.into_iter().map(move |site| (it.family.clone(), site)))
            .filter(|(_, site)| site.placement.inside.is_some())
            .collect();
        for (family, site) in &inside {
            assert_eq!((family.as_str(), &site.names[..]), ("glibc", &["malloc".to_owned()][..]));
            assert_ne!(site.placement.stepping, Stepping::SingleStep);
        }
        let version = ["2.35", "2.36", "2.39", "2.41"].into_iter().find(|version| {
            let version_text = format!("GNU C Library (Debian GLIBC {version}");
            elf.windows(version_text.len()).any(|window| window == version_text.as_bytes())
        });
        assert!(
            version.is_none() || inside.iter().any(|(_, site)| site.point == ProbePoint::Block),
            "{} of version {version:?} is known to allow a proof",
            path.display()
        );
    }
}
