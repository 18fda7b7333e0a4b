//! Gives away what the daemon may do and needs no more once it has begun.
//!
//! Capabilities are a thread's own, and those that it starts have what it has: this is done before there are others.

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs};

/// Capabilities that profiling needs (reasons in SECURITY.md). `CAP_NET_ADMIN`, which older kernels require for process events,
/// is needed only to subscribe, not to receive. `CAP_DAC_OVERRIDE` lets root write to another user's state directory.
const NEEDED: CapabilitySet = CapabilitySet::BPF
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::CHECKPOINT_RESTORE)
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::DAC_OVERRIDE);

/// Drops all other capabilities permanently. `no_new_privs` keeps root from regaining them by running another program.
pub(super) fn drop_unneeded() {
    let given = capabilities(None).and_then(|CapabilitySets { effective, permitted, inheritable }| {
        let [effective, permitted, inheritable] = [effective, permitted, inheritable].map(|set| set & NEEDED);
        set_capabilities(None, CapabilitySets { effective, permitted, inheritable })
    });
    let given = given.and_then(|()| set_no_new_privs(true));
    if let Err(error) = given {
        tracing::warn!("cannot drop unneeded capabilities: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_needed_capabilities_are_left() {
        let [before, after] = std::thread::spawn(|| {
            let before = capabilities(None).unwrap();
            drop_unneeded();
            // Set even without any capabilities.
            assert!(rustix::thread::no_new_privs().unwrap());
            [before, capabilities(None).unwrap()]
        })
        .join()
        .unwrap();
        assert_eq!(after.effective, before.effective & NEEDED);
        assert_eq!(after.permitted, before.permitted & NEEDED);
    }
}
