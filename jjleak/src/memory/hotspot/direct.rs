//! Direct buffers: the counters of `java.nio.Bits`, and Netty's own for buffers that it allocates without `Bits`.

use super::classes::{Class, Classes};
use super::{DirectBuffers, Reader, Reading, Unknown};
use crate::jvm::{Memory, Paged};

const MIRROR: &str = "java/lang/Class";
const COUNTER: &str = "java/util/concurrent/atomic/AtomicLong";
const BITS: &str = "java/nio/Bits";
const NETTY: &str = "io/netty/util/internal/PlatformDependent";
/// Times that the counters are read: a collection can move them meanwhile.
const ATTEMPTS: usize = 3;

pub(super) fn read<M: Memory>(reader: &Reader<'_, M>) -> Reading<DirectBuffers> {
    // Thousands of classes and flags are looked at, each with several reads.
    let paged =
        Reader { memory: &Paged::new(reader.memory), structs: reader.structs, mappings: reader.mappings };
    let at_once = Classes::of(&paged)?;
    let [mirror, counter, bits, netty] = at_once.find([MIRROR, COUNTER, BITS, NETTY])?;
    // Counters change meanwhile.
    let classes = at_once.read_by(reader);
    let of = |class: Option<Class>| class.ok_or(Unknown::Undescribed);
    let (mirror, counter) = (of(mirror)?, of(counter)?);
    let counters =
        Counters { classes: &classes, reader, mirror, counter, value: classes.offset(counter, "value")? };
    let mut last = Err(Unknown::Unreadable);
    for _ in 0..ATTEMPTS {
        last = counters.buffers(of(bits)?).map(|buffers| DirectBuffers {
            // Netty does not count if it may not allocate without `java.nio.Bits`.
            netty: of(netty).and_then(|class| counters.number(class, "DIRECT_MEMORY_COUNTER")),
            ..buffers
        });
        if last.is_ok() {
            break;
        }
    }
    last
}

/// Static counters of classes.
struct Counters<'a, M> {
    classes: &'a Classes<'a, M>,
    reader: &'a Reader<'a, M>,
    mirror: Class,
    counter: Class,
    /// Offset of a counter's value.
    value: u64,
}

impl<M: Memory> Counters<'_, M> {
    fn buffers(&self, bits: Class) -> Reading<DirectBuffers> {
        let reserved = self.number(bits, "RESERVED_MEMORY")?;
        let capacity = self.number(bits, "TOTAL_CAPACITY")?;
        let count = self.number(bits, "COUNT")?;
        let most = self.reader.word(
            self.classes.mirror(bits, self.mirror)?.wrapping_add(self.classes.offset(bits, "MAX_MEMORY")?),
        )?;
        let is_plausible = most > 0 && most < 1 << 63 && capacity <= most && reserved < 1 << 47;
        let buffers = DirectBuffers { reserved, capacity, count, most, netty: Err(Unknown::Undescribed) };
        is_plausible.then_some(buffers).ok_or(Unknown::Implausible)
    }

    /// Value of a counter that a static field refers to.
    fn number(&self, class: Class, field: &str) -> Reading<u64> {
        let mirror = self.classes.mirror(class, self.mirror)?;
        let counter = self.classes.referred(mirror, self.classes.offset(class, field)?, self.counter)?;
        let value = self.reader.word(counter.wrapping_add(self.value))?;
        (value < 1 << 62).then_some(value).ok_or(Unknown::Implausible)
    }
}
