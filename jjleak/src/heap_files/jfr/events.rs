//! Events that say who allocates.

use super::cursor::{Cursor, Damaged};
use super::pools::{FrameAt, Pools};
use super::types::Types;
use crate::fast_map::FastMap;
use crate::heap_files::named::{Amount, NamedFile, NamedFormat, NamedFrame, NamedKind, NamedStack};
use crate::heap_files::{Damage, Error, MAX_ADDRESSES};

/// Kinds of figures in a recording. The first of these that it has is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum JfrEvents {
    /// Calls of `malloc` and the like, and of `free`: `profiler.Malloc` and `profiler.Free`.
    Native,
    /// Objects that were still there at the end: `profiler.LiveObject`.
    LiveObjects,
    /// New thread-local buffers, and objects outside of them: `jdk.ObjectAllocationInNewTLAB` and `...OutsideTLAB`.
    Buffers,
    /// Samples of objects: `jdk.ObjectAllocationSample`.
    #[default]
    Samples,
}

/// An event.
#[derive(Debug, Clone, Copy)]
pub(super) struct Event {
    of: JfrEvents,
    time: u64,
    stack: u64,
    /// `None` where it has no class.
    class: Option<u64>,
    address: u64,
    /// `None` for freed memory.
    bytes: Option<u64>,
}

/// Reads an event that says who allocates.
pub(super) fn read(
    event: &[u8],
    kind: u64,
    types: &Types,
    budget: &mut usize,
) -> Result<Option<Event>, Damaged> {
    let Some(described) = types.get(kind) else { return Ok(None) };
    // Fields with the number of bytes that the event stands for.
    let (of, bytes) = match described.name.as_str() {
        "profiler.Malloc" => (JfrEvents::Native, Some("size")),
        "profiler.Free" => (JfrEvents::Native, None),
        "profiler.LiveObject" => (JfrEvents::LiveObjects, Some("allocationSize")),
        "jdk.ObjectAllocationInNewTLAB" => (JfrEvents::Buffers, Some("tlabSize")),
        "jdk.ObjectAllocationOutsideTLAB" => (JfrEvents::Buffers, Some("allocationSize")),
        "jdk.ObjectAllocationSample" => (JfrEvents::Samples, Some("weight")),
        _ => return Ok(None),
    };
    let mut cursor = Cursor::new(event);
    // Size and type.
    cursor.number()?;
    cursor.number()?;
    let object = types.object(kind, &mut cursor, budget)?;
    let number = |name| described.number(&object, name);
    Ok(Some(Event {
        of,
        time: number("startTime").unwrap_or_default(),
        stack: number("stackTrace").unwrap_or_default(),
        class: number("objectClass"),
        address: number("address").unwrap_or_default(),
        bytes: match bytes {
            Some(field) => Some(number(field).ok_or("an event does not say how much it stands for")?),
            None => None,
        },
    }))
}

/// Maximum number of calls of `malloc` and `free`: 256 MiB.
const MAX_CALLS: usize = 8 << 20;

/// A call of `malloc` or `free`.
#[derive(Debug)]
struct Call {
    time: u64,
    address: u64,
    /// `None` for freed memory.
    bytes: Option<u64>,
    stack: u32,
}

/// Stacks, calls and sums of the chunks so far.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    file: NamedFile,
    frames: FastMap<NamedFrame, u32>,
    stacks: FastMap<Vec<u32>, u32>,
    /// Frames of each stack.
    by_number: Vec<Vec<u32>>,
    /// Sums of events that stand for themselves, by stack.
    sums: FastMap<(JfrEvents, u32), Amount>,
    calls: Vec<Call>,
    /// Number of frames in all stacks.
    total: usize,
}

/// Stacks and frames of a chunk. Their numbers mean something else in the next.
#[derive(Debug, Default)]
pub(super) struct OfChunk {
    stacks: FastMap<(u64, Option<u64>), u32>,
    frames: FastMap<FrameAt, u32>,
}

impl Recorded {
    pub(super) fn damaged(&mut self, chunk: u64, reason: &'static str) {
        let damage = self.file.damage.get_or_insert(Damage { lines: 0, first: chunk, reason });
        damage.lines += 1;
    }

    pub(super) fn add(&mut self, event: Event, pools: &Pools, of_chunk: &mut OfChunk) -> Result<(), Error> {
        let key = (event.stack, event.class);
        let stack = if let Some(stack) = of_chunk.stacks.get(&key) {
            *stack
        } else {
            let stack = self.stack(key, pools, &mut of_chunk.frames)?;
            of_chunk.stacks.insert(key, stack);
            stack
        };
        let Event { of, time, address, bytes, .. } = event;
        if of == JfrEvents::Native {
            if self.calls.len() >= MAX_CALLS {
                return Err(Error::Calls(MAX_CALLS));
            }
            self.calls.push(Call { time, address, bytes, stack });
        } else if let Some(bytes) = bytes {
            self.sums.entry((of, stack)).or_default().add(bytes);
        }
        Ok(())
    }

    /// Number of a stack.
    fn stack(
        &mut self,
        (stack, class): (u64, Option<u64>),
        pools: &Pools,
        known: &mut FastMap<FrameAt, u32>,
    ) -> Result<u32, Error> {
        let mut indices = Vec::new();
        if let Some(class) = class {
            let (function, kind) = (pools.class(class), NamedKind::Class);
            indices.push(self.frame(NamedFrame { function, kind, ..NamedFrame::default() })?);
        }
        for frame in pools.stack(stack) {
            let index = if let Some(index) = known.get(frame) {
                *index
            } else {
                let index = self.frame(pools.frame(*frame))?;
                known.insert(*frame, index);
                index
            };
            indices.push(index);
        }
        let next = u32::try_from(self.by_number.len()).map_err(|_| Error::TooLarge)?;
        let number = *self.stacks.entry(indices.clone()).or_insert(next);
        if number == next {
            self.total += indices.len();
            if self.total > MAX_ADDRESSES as usize {
                return Err(Error::TooLarge);
            }
            self.by_number.push(indices);
        }
        Ok(number)
    }

    fn frame(&mut self, frame: NamedFrame) -> Result<u32, Error> {
        if let Some(index) = self.frames.get(&frame) {
            return Ok(*index);
        }
        let index = self.file.add_frame(frame.clone())?;
        self.frames.insert(frame, index);
        Ok(index)
    }

    /// The stacks with the events that are shown.
    pub(super) fn finish(self) -> Result<NamedFile, Error> {
        let Self { mut file, by_number, sums, calls, .. } = self;
        let of_sums = || sums.keys().map(|(of, _)| *of).min().unwrap_or_default();
        let of = if calls.is_empty() { of_sums() } else { JfrEvents::Native };
        file.format = NamedFormat::Jfr(of);
        let mut amounts = of_calls(calls);
        let shown = sums.into_iter().filter(|((kind, _), _)| *kind == of);
        amounts.extend(shown.map(|((_, stack), amount)| (stack, (amount, amount))));
        for (frames, stack) in by_number.into_iter().zip(0..) {
            if let Some((live, allocated)) = amounts.get(&stack) {
                file.add_stack(NamedStack { frames, live: *live, allocated: Some(*allocated) })?;
            }
        }
        Ok(file)
    }
}

/// Live and allocated memory by stack.
fn of_calls(mut calls: Vec<Call>) -> FastMap<u32, (Amount, Amount)> {
    // Each thread's calls are written at once.
    calls.sort_by_key(|call| call.time);
    let mut amounts = FastMap::<u32, (Amount, Amount)>::default();
    let mut blocks = FastMap::<u64, (u32, u64)>::default();
    for Call { address, bytes, stack, .. } in calls {
        let Some(bytes) = bytes else {
            // The block is unknown if it was allocated before the recording, or is not in a sample.
            if let Some((stack, bytes)) = blocks.remove(&address)
                && let Some((live, _)) = amounts.get_mut(&stack)
            {
                live.bytes = live.bytes.saturating_sub(bytes);
                live.objects = live.objects.saturating_sub(1);
            }
            continue;
        };
        let (live, allocated) = amounts.entry(stack).or_default();
        live.add(bytes);
        allocated.add(bytes);
        blocks.insert(address, (stack, bytes));
    }
    amounts
}

impl Amount {
    const fn add(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.objects += 1;
    }
}
