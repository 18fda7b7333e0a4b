//! The kernel's verifier follows every path through a program, and gives up after a million instructions. Kernels
//! differ in how many paths they see, so there must be room.

use jjleak::attach::{Attachment, Following, Programs, Settings};
use jjleak_common::sampling::Sampling;

use crate::support::privilege::require_bpf;

/// A tenth of what the kernel allows (`BPF_COMPLEXITY_LIMIT_INSNS` in include/linux/bpf.h).
const CEILING: u32 = 100_000;

#[test]
fn programs_stay_far_below_what_the_verifier_follows() {
    require_bpf!();
    let plain =
        |programs| Settings { following: Following::Everyone, mappings: true, ..Settings::new(programs) };
    // What is not wanted, the verifier leaves out.
    let accounting = plain(Programs::Accounting);
    let all = Settings { sampling: Sampling::Bytes(4096), combined: true, trace: true, ..accounting };
    for (settings, largest) in
        [(accounting, "resize_enter"), (all, "resize_enter"), (plain(Programs::Bare), "bare_enter")]
    {
        let attachment = Attachment::load(settings).unwrap();

        let counts = attachment.verified_instructions();

        println!("verified instructions: {counts:?}");
        assert!(counts.iter().any(|(name, _)| *name == largest), "programs: {counts:?}");
        for (name, count) in counts {
            assert!(count < CEILING, "{name} has {count} verified instructions");
        }
    }
}
