//! Bytes that threads have allocated in the Java heap: HotSpot counts them per thread when a thread-local buffer is full
//! (`Thread::cooked_allocated_bytes` in the JDK).

use std::collections::HashMap;

use jjleak_common::java_heap::HeapLayout;

use super::Memory;
use super::structs::{Field, Structs};

/// Maximum number of threads read.
const MAX_THREADS: u64 = 1 << 16;
/// Largest buffer of a thread: more is taken for a torn read.
const MAX_BUFFER: u64 = 1 << 40;
const WORD: u64 = 8;

/// Places of these counters.
#[derive(Debug)]
pub(super) struct AllocationLayout {
    allocated: Field,
    buffer_start: Field,
    buffer_top: Field,
    class_name: Field,
    threads: Threads,
}

/// The list of threads.
#[derive(Debug)]
enum Threads {
    /// An array, at this static field's value.
    Array { list: u64, length: Field, first: Field },
    /// A linked list, until JDK 11.
    Linked { first: u64, next: Field },
}

impl AllocationLayout {
    /// `None` if this version does not describe them.
    pub(super) fn of(structs: &Structs) -> Option<Self> {
        let field = |structure, name| structs.field(&[(structure, name)]).ok();
        let buffer = field("Thread", "_tlab")?.offset;
        let in_buffer = |name| {
            let field = field("ThreadLocalAllocBuffer", name)?;
            Some(Field { offset: buffer.checked_add(field.offset)?, ..field })
        };
        let threads = match structs.address(&[("ThreadsSMRSupport", "_java_thread_list")]) {
            Ok(list) => Threads::Array {
                list,
                length: field("ThreadsList", "_length")?,
                first: field("ThreadsList", "_threads")?,
            },
            Err(_) => Threads::Linked {
                first: structs.address(&[("Threads", "_thread_list")]).ok()?,
                next: field("JavaThread", "_next")?,
            },
        };
        Some(Self {
            allocated: field("Thread", "_allocated_bytes")?,
            buffer_start: in_buffer("_start")?,
            buffer_top: in_buffer("_top")?,
            class_name: field("Klass", "_name")?,
            threads,
        })
    }

    /// The layout for the kernel side.
    pub(super) fn for_kernel(&self) -> Option<HeapLayout> {
        let offset = |field: Field| u32::try_from(field.offset).ok();
        Some(HeapLayout {
            allocated: offset(self.allocated)?,
            buffer_start: offset(self.buffer_start)?,
            buffer_top: offset(self.buffer_top)?,
            class_name: offset(self.class_name)?,
        })
    }

    /// Bytes that each thread has allocated, by the address of its structure; `None` if the list cannot be read.
    pub(super) fn by_threads(&self, memory: &impl Memory) -> Option<HashMap<u64, u64>> {
        let mut threads = HashMap::new();
        let mut add = |thread: u64| {
            // A thread that ends meanwhile allocates nothing more.
            if let Some(bytes) = self.allocated_by(memory, thread) {
                threads.insert(thread, bytes);
            }
        };
        match self.threads {
            Threads::Array { list, length, first } => {
                let list = memory.pointer(list)?;
                let first = first.read(memory, list)?;
                let length = length.read(memory, list).filter(|length| *length <= MAX_THREADS)?;
                (0..length).try_for_each(|index| {
                    add(memory.pointer(first.wrapping_add(WORD * index))?);
                    Some(())
                })?;
            }
            Threads::Linked { first, next } => {
                let mut thread = memory.pointer(first)?;
                for _ in 0..MAX_THREADS {
                    if thread == 0 {
                        break;
                    }
                    add(thread);
                    thread = next.read(memory, thread)?;
                }
            }
        }
        Some(threads)
    }

    fn allocated_by(&self, memory: &impl Memory, thread: u64) -> Option<u64> {
        let field = |field: Field| field.read(memory, thread);
        let in_buffer = field(self.buffer_top)?.wrapping_sub(field(self.buffer_start)?);
        let earlier = field(self.allocated)?;
        Some(if in_buffer < MAX_BUFFER { earlier.wrapping_add(in_buffer) } else { earlier })
    }
}
