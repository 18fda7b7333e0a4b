//! Growth within glibc's malloc.

use super::{CAUSE, Cause, Finding, Growth, bytes, finding, ratio};
use crate::memory::hotspot::NativeCategory;
use crate::memory::{Kind, ProcessScan};
use crate::render::printable;

/// Maximum number of arenas per CPU of the host, whatever the control group has (`NARENAS_FROM_NCORES` in glibc's `malloc/arena.c`).
const ARENAS_PER_CPU: usize = 8;

impl Growth<'_> {
    /// Chunks in use grow; direct buffers are a cause of their own.
    pub(super) fn native(&self) -> Option<Finding> {
        let (first, last) = (self.first.malloc.as_ref()?, self.last.malloc.as_ref()?);
        let grown = last.live.bytes.saturating_sub(first.live.bytes).min(self.of(&[Kind::MallocLive]));
        let grown = grown.saturating_sub(self.direct_grown());
        let more = last.live.count.saturating_sub(first.live.count);
        let is_counted = !first.is_by_lists && !last.is_by_lists;
        let chunks = if is_counted { format!(" in {more} more chunks") } else { String::new() };
        let mut evidence = vec![format!("chunks in use: +{}{chunks}", bytes(grown))];
        evidence.extend(self.by_category(grown));
        finding(Cause::NativeLeak, grown, evidence, &self.profile())
    }

    /// The part of malloc's growth that a JVM counts, if it counts: by the category that grows most, or as the little that it is.
    fn by_category(&self, grown: u64) -> Option<String> {
        let of = |scan: &ProcessScan| scan.jvm.as_ref()?.native.clone().ok()?;
        let (first, last) = (of(self.first)?, of(self.last)?);
        let before = |name: &str| {
            let known = first.iter().find(|category| category.name == name);
            known.map_or(0, NativeCategory::of_malloc)
        };
        let changes = || last.iter().map(|now| (now.of_malloc().saturating_sub(before(&now.name)), now));
        let (most, category) = changes().max_by_key(|(change, _)| *change)?;
        let all: u64 = changes().map(|(change, _)| change).sum();
        Some(if ratio(all, grown) < CAUSE {
            "Native Memory Tracking does not count it: it is not the JVM's own".to_owned()
        } else {
            format!("Native Memory Tracking: {} +{}", printable(&category.name), bytes(most))
        })
    }

    /// Free chunks grow, or stay resident between chunks in use.
    pub(super) fn retention(&self) -> Option<Finding> {
        let (first, last) = (self.first.malloc.as_ref()?, self.last.malloc.as_ref()?);
        let grown = last.free.resident().saturating_sub(first.free.resident());
        let mut evidence = vec![format!("free and resident: +{}", bytes(grown))];
        evidence.push(format!("a trim would return {}", bytes(last.free.trimmable)));
        let arenas = self.last.arenas.unwrap_or_default();
        if arenas > 1 {
            evidence.push(format!("{arenas} arenas for {} threads", self.last.threads));
        }
        let most = ARENAS_PER_CPU * self.last.cpus;
        if arenas > 1 && arenas * 4 >= most * 3 {
            evidence.push(format!("malloc makes at most {most} on {} CPUs", self.last.cpus));
            return finding(Cause::ArenaCount, grown, evidence, "start it with MALLOC_ARENA_MAX=2");
        }
        let to_do = if self.last.jvm.is_some() {
            format!(
                "jcmd {} System.trim_native_heap (JDK 18 and later), or start it with MALLOC_ARENA_MAX=2",
                self.pid
            )
        } else {
            "start it with MALLOC_ARENA_MAX=2, call malloc_trim(0), or use jemalloc".to_owned()
        };
        finding(Cause::Retention, grown, evidence, &to_do)
    }
}
