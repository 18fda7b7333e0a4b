//! Growth of a JVM's heap and classes.

use super::{CAUSE, Cause, Finding, Growth, bytes, finding, share_of};
use crate::memory::hotspot::{Classes, DirectBuffers};
use crate::memory::{Kind, ProcessScan};
use crate::render::grouped;

/// Committed heap is far above what is used in it if it is as many times as large.
const COMMITTED_FAR_ABOVE: u64 = 3;
/// Minimum number of new class loaders that are more than a program needs to start: hidden classes count, too.
const MIN_MORE_LOADERS: u64 = 50;

impl Growth<'_> {
    pub(super) fn java_heap(&self) -> Option<Finding> {
        let grown = self.of(&[Kind::JavaHeap]);
        let (first, last) = (&self.first.jvm.as_ref()?.heap, &self.last.jvm.as_ref()?.heap);
        let mut evidence = vec![format!("resident Java heap: +{}", bytes(grown))];
        if let (Ok(used), Ok(committed)) = (last.used, last.committed) {
            evidence.push(format!("{} used of {} committed", bytes(used), bytes(committed)));
        }
        let after = (first.used_after_collection, last.used_after_collection);
        let is_kept = match after {
            (Ok(before), Ok(now)) => {
                evidence.push(format!(
                    "used after the last collection: {}, then {}",
                    bytes(before),
                    bytes(now)
                ));
                now.saturating_sub(before) >= share_of(grown, CAUSE)
            }
            _ => false,
        };
        // Until the first collection, all that is allocated counts as used: a leak looks the same as garbage.
        if let (Ok(before), Ok(used), Ok(committed)) = (first.used, last.used, last.committed)
            && !is_kept
            && committed / COMMITTED_FAR_ABOVE >= used
            && used.saturating_sub(before) < share_of(grown, CAUSE)
        {
            let to_do =
                "let it give memory back: -XX:MaxHeapFreeRatio, -XX:G1PeriodicGCInterval, or a smaller -Xmx";
            return finding(Cause::HeapPolicy, grown, evidence, to_do);
        }
        if !is_kept {
            evidence.push("until a collection, garbage counts".to_owned());
        }
        finding(Cause::JavaHeap, grown, evidence, &format!("jjleak heap -p {}", self.pid))
    }

    /// Direct buffers that Java code keeps: native memory with a limit of its own.
    pub(super) fn direct_buffers(&self) -> Option<Finding> {
        let last = self.last.jvm.as_ref()?.direct.as_ref().ok()?;
        let mut evidence = vec![format!(
            "direct buffers: +{}, {} of at most {} in {} buffers",
            bytes(self.direct_grown()),
            bytes(last.reserved),
            bytes(last.most),
            grouped(last.count)
        )];
        evidence
            .extend(last.netty.ok().filter(|own| *own > 0).map(|own| format!("Netty's own: {}", bytes(own))));
        finding(Cause::DirectBuffers, self.direct_grown(), evidence, &self.profile())
    }

    /// Resident growth that direct buffers explain.
    pub(super) fn direct_grown(&self) -> u64 {
        let held = |direct: &DirectBuffers| direct.reserved.saturating_add(direct.netty.unwrap_or(0));
        let of = |scan: &ProcessScan| Some(held(scan.jvm.as_ref()?.direct.as_ref().ok()?));
        // A buffer class that is loaded between the scans had nothing before.
        let (before, now) = (of(self.first).unwrap_or(0), of(self.last).unwrap_or(0));
        now.saturating_sub(before).min(self.of(&[Kind::MallocLive, Kind::Anonymous, Kind::Brk]))
    }

    /// Returns true if there are many more class loaders and classes than before.
    pub(super) fn keeps_loaders(&self) -> bool {
        let known = |scan: &ProcessScan| {
            let classes = &scan.jvm.as_ref()?.classes;
            Some((classes.loaders.ok()?, loaded(classes)?))
        };
        let (Some((before, classes_before)), Some((now, classes_now))) =
            (known(self.first), known(self.last))
        else {
            return false;
        };
        let many = MIN_MORE_LOADERS.max(before / 4);
        now.saturating_sub(before) >= many && classes_now.saturating_sub(classes_before) >= many
    }

    pub(super) fn classes(&self) -> Option<Finding> {
        let grown = self.of(&[Kind::Metaspace, Kind::ClassSpace]);
        let (first, last) = (&self.first.jvm.as_ref()?.classes, &self.last.jvm.as_ref()?.classes);
        let mut evidence = vec![format!("metaspace: +{}", bytes(grown))];
        if let (Some(before), Some(now)) = (loaded(first), loaded(last)) {
            evidence.push(format!("loaded classes: {before}, then {now}"));
        }
        if let (Ok(before), Ok(now)) = (first.loaders, last.loaders) {
            evidence.push(format!("class loaders: {before}, then {now}"));
        }
        let to_do = format!("jcmd {} VM.classloader_stats", self.pid);
        finding(Cause::ClassLoaders, grown, evidence, &to_do)
    }
}

/// Number of classes that are there.
fn loaded(classes: &Classes) -> Option<u64> {
    Some(classes.loaded.ok()?.saturating_sub(classes.unloaded.ok()?))
}
