//! Growth of a JVM's heap and classes.

use super::{CAUSE, Cause, Finding, Growth, bytes, finding, share_of};
use crate::memory::Kind;
use crate::memory::hotspot::Classes;

/// Committed heap is far above what is used in it if it is as many times as large.
const COMMITTED_FAR_ABOVE: u64 = 3;

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
        let to_do = if is_kept {
            format!("jcmd {} GC.heap_dump FILE: what is kept survives collections", self.pid)
        } else {
            format!(
                "jcmd {} GC.class_histogram; -Xmx limits it, and garbage counts until it is collected",
                self.pid
            )
        };
        finding(Cause::JavaHeap, grown, evidence, &to_do)
    }

    pub(super) fn classes(&self) -> Option<Finding> {
        let grown = self.of(&[Kind::Metaspace, Kind::ClassSpace]);
        let (first, last) = (&self.first.jvm.as_ref()?.classes, &self.last.jvm.as_ref()?.classes);
        let loaded = |classes: &Classes| Some(classes.loaded.ok()?.saturating_sub(classes.unloaded.ok()?));
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
