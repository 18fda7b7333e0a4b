//! Gives away what the daemon may do and needs no more once it has begun.
//!
//! Capabilities are a thread's own, and those that it starts have what it has: this is done before there are others.

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs};

/// What profiling takes (SECURITY.md tells what for). `CAP_NET_ADMIN` is none of it: whoever listens to the kernel's process
/// events, for which older kernels want it, goes on hearing them. Root whose state directory is another user's needs
/// `CAP_DAC_OVERRIDE` to write to it.
const NEEDED: CapabilitySet = CapabilitySet::BPF
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::CHECKPOINT_RESTORE)
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::DAC_OVERRIDE);

/// Gives away all but what profiling takes, for good: root would get it back with another program that it runs, if that could give
/// it new privileges.
pub(super) fn give_away() {
    let given = capabilities(None).and_then(|CapabilitySets { effective, permitted, inheritable }| {
        let [effective, permitted, inheritable] = [effective, permitted, inheritable].map(|set| set & NEEDED);
        set_capabilities(None, CapabilitySets { effective, permitted, inheritable })
    });
    let given = given.and_then(|()| set_no_new_privs(true));
    if let Err(error) = given {
        tracing::warn!("capabilities that are not needed any more cannot be given away: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_but_what_is_needed_and_that_is() {
        let [before, after] = std::thread::spawn(|| {
            let before = capabilities(None).unwrap();
            give_away();
            // Also who has none cannot get any more.
            assert!(rustix::thread::no_new_privs().unwrap());
            [before, capabilities(None).unwrap()]
        })
        .join()
        .unwrap();
        assert_eq!(after.effective, before.effective & NEEDED);
        assert_eq!(after.permitted, before.permitted & NEEDED);
    }
}
