//! The code cache: heaps of blocks, each with a blob of machine code (`src/hotspot/share/memory/heap.hpp` and
//! `code/codeBlob.hpp` in the JDK). It is looked at an address at a time, as the kernel side does: see
//! [`jjleak_common::jvm`].

use std::ops::Range;

use jjleak_common::jvm::{CodeCache, CodeHeap, Continuations, MAX_HEADER_BYTES, MAX_HEAPS};

use super::structs::{Field, Structs};
use super::{Error, Memory};

/// The largest heap that can be asked for has 2 GiB; the default is 240 MiB for all.
const MAX_HEAP_BYTES: u64 = 2 << 30;
/// log2 of the bytes of a heap's segment; 7 unless set otherwise (`-XX:CodeCacheSegmentSize`).
const SEGMENT_LOG2: Range<u64> = 5..17;
/// Segments that the map is read for at first, backwards, to find where a block begins: hardly one has more than some hundred.
const FIRST_STRETCH: u64 = 256;
/// The same of those that have more.
const STRETCH: u64 = 4096;
/// Steps that lead to the start of a block, each over up to 254 segments: enough for all of a heap.
const MAX_STEPS: u32 = 1 << 16;
/// In the segment map: no block has ever been there.
const UNUSED: u8 = 0xff;
const WORD: u64 = 8;
/// Bytes in which the kernel side counts.
const KERNEL_WORD: u64 = 4;

/// Where things are in the code cache.
#[derive(Debug)]
pub(super) struct CodeCacheLayout {
    heaps: Heaps,
    /// Where the JVM keeps a pointer to its interpreter, which it makes after all heaps and before it runs Java.
    interpreter: Option<u64>,
    low: u64,
    end: u64,
    segment_map: u64,
    segment_log2: Field,
    block_bytes: u64,
    block_used: Field,
    pub(super) blob: BlobLayout,
}

/// Where pointers to the heaps are.
#[derive(Debug)]
enum Heaps {
    /// In an array.
    Many { array: u64, length: Field, data: Field },
    /// There is one; until JDK 8.
    One { pointer: u64 },
}

/// Where things are in a blob.
#[derive(Debug)]
pub(super) struct BlobLayout {
    name: Field,
    size: Field,
    frame_size: Field,
    code: CodeRange,
    method: Field,
    compile_id: Field,
    ways_out: Option<WaysOut>,
    /// Bytes of a blob that all of these are in.
    bytes: usize,
    /// Bytes that those are in that every blob has.
    plain_bytes: u64,
}

/// Where compiled code leads to the interpreter when it is thrown away, said as its code is, and where a frame keeps its return
/// address then.
#[derive(Debug)]
struct WaysOut {
    of_calls: Field,
    /// There is no other one since JDK 26.
    of_method_handles: Option<Field>,
    original: Field,
}

impl WaysOut {
    fn of(structs: &Structs, is_relative: bool) -> Option<Self> {
        let [call, by_handle]: [&[(&str, &str)]; 2] = if is_relative {
            [
                &[("nmethod", "_deopt_handler_offset"), ("nmethod", "_deopt_handler_entry_offset")],
                &[("nmethod", "_deopt_mh_handler_offset")],
            ]
        } else {
            [
                &[("CompiledMethod", "_deopt_handler_begin"), ("nmethod", "_deopt_handler_begin")],
                &[("CompiledMethod", "_deopt_mh_handler_begin"), ("nmethod", "_deopt_mh_handler_begin")],
            ]
        };
        Some(Self {
            of_calls: structs.field(call).ok()?,
            of_method_handles: structs.field(by_handle).ok(),
            original: structs.field(&[("nmethod", "_orig_pc_offset")]).ok()?,
        })
    }

    fn end(&self) -> u64 {
        let last = self.of_calls.end().max(self.original.end());
        self.of_method_handles.map_or(last, |field| last.max(field.end()))
    }
}

/// How a blob says where its code is.
#[derive(Debug)]
enum CodeRange {
    /// By addresses; until JDK 22.
    Addresses { begin: Field, end: Field },
    /// By distances from its start.
    Offsets { begin: Field, end: Field },
}

impl CodeCacheLayout {
    pub(super) fn of(structs: &Structs) -> Result<Self, Error> {
        let field = |structure, name| structs.field(&[(structure, name)]);
        let memory = field("CodeHeap", "_memory")?.offset;
        let low = field("VirtualSpace", "_low")?.offset;
        let header = field("HeapBlock", "_header")?.offset;
        let in_header = |name| {
            let field = field("HeapBlock::Header", name)?;
            Ok::<_, Error>(Field { offset: header.wrapping_add(field.offset), ..field })
        };
        Ok(Self {
            heaps: Heaps::of(structs)?,
            interpreter: structs.address(&[("AbstractInterpreter", "_code")]).ok(),
            low: memory.wrapping_add(low),
            end: memory.wrapping_add(field("VirtualSpace", "_high_boundary")?.offset),
            segment_map: field("CodeHeap", "_segmap")?.offset.wrapping_add(low),
            segment_log2: field("CodeHeap", "_log2_segment_size")?,
            block_bytes: structs.size("HeapBlock")?,
            block_used: in_header("_used")?,
            blob: BlobLayout::of(structs)?,
        })
    }
}

impl Heaps {
    fn of(structs: &Structs) -> Result<Self, Error> {
        if let Ok(pointer) = structs.address(&[("CodeCache", "_heap")]) {
            return Ok(Self::One { pointer });
        }
        Ok(Self::Many {
            array: structs.address(&[("CodeCache", "_heaps")])?,
            length: structs.field(&[("GrowableArrayBase", "_len"), ("GenericGrowableArray", "_len")])?,
            data: structs.field(&[("GrowableArray<int>", "_data")])?,
        })
    }

    /// Where the first of the pointers is, and how many there are. `None` before there are any.
    fn read(&self, memory: &impl Memory) -> Option<(u64, u64)> {
        match self {
            Self::Many { array, length, data } => {
                let array = memory.pointer(*array).filter(|array| *array != 0)?;
                Some((data.read(memory, array)?, length.read(memory, array)?.min(MAX_HEAPS as u64)))
            }
            Self::One { pointer } => Some((*pointer, 1)),
        }
    }
}

impl BlobLayout {
    fn of(structs: &Structs) -> Result<Self, Error> {
        let field = |name| structs.field(&[("CodeBlob", name)]);
        let code = match (field("_code_begin"), field("_code_end")) {
            (Ok(begin), Ok(end)) => CodeRange::Addresses { begin, end },
            _ => CodeRange::Offsets { begin: field("_code_offset")?, end: field("_data_offset")? },
        };
        let ways_out = WaysOut::of(structs, matches!(code, CodeRange::Offsets { .. }));
        let mut layout = Self {
            name: field("_name")?,
            size: field("_size")?,
            frame_size: field("_frame_size")?,
            code,
            method: structs.field(&[("CompiledMethod", "_method"), ("nmethod", "_method")])?,
            compile_id: structs.field(&[("nmethod", "_compile_id")])?,
            ways_out,
            bytes: 0,
            plain_bytes: 0,
        };
        let (CodeRange::Addresses { begin, end } | CodeRange::Offsets { begin, end }) = layout.code;
        let last = |fields: &[Field]| fields.iter().map(|field| field.end()).max().unwrap_or_default();
        layout.plain_bytes = last(&[layout.name, layout.size, layout.frame_size, begin, end]);
        let ways_out = layout.ways_out.as_ref().map_or(0, WaysOut::end);
        let end = layout.plain_bytes.max(last(&[layout.method, layout.compile_id])).max(ways_out);
        let fits = |end: &usize| *end < MAX_HEADER_BYTES;
        layout.bytes = usize::try_from(end).ok().filter(fits).ok_or_else(too_large)?;
        Ok(layout)
    }

    /// What a copy of the start of the blob at `at` says, without its name and kind.
    fn parse(&self, at: u64, copy: &[u8]) -> Option<Blob> {
        let code = match self.code {
            CodeRange::Addresses { begin, end } => begin.of(copy)?..end.of(copy)?,
            CodeRange::Offsets { begin, end } => {
                at.wrapping_add(begin.of(copy)?)..at.wrapping_add(end.of(copy)?)
            }
        };
        let size = self.size.of(copy)?;
        let is_inside = at <= code.start && code.start < code.end && code.end <= at.wrapping_add(size);
        is_inside.then(|| Blob {
            at,
            size,
            code,
            kind: BlobKind::Stub,
            name: String::new(),
            method: self.method.of(copy).unwrap_or_default(),
            compile_id: self.compile_id.of(copy).unwrap_or_default(),
        })
    }

    /// Whether the blob is still in its place.
    pub(super) fn is_current(&self, memory: &impl Memory, blob: &Blob) -> bool {
        let copy = self.header(memory, blob.at, 0);
        copy.and_then(|copy| self.parse(blob.at, &copy)).is_some_and(|now| {
            (now.code, now.method, now.compile_id) == (blob.code.clone(), blob.method, blob.compile_id)
        })
    }
}

fn too_large() -> Error {
    Error::Unknown("blob of a possible size".to_owned())
}

/// Machine code and what it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    /// Where its header is.
    pub(super) at: u64,
    pub(super) size: u64,
    /// Where its code is.
    pub code: Range<u64>,
    /// What kind of code it is.
    pub kind: BlobKind,
    /// HotSpot's name for it: of a stub, what it does.
    pub name: String,
    /// The `Method` of compiled code.
    pub(super) method: u64,
    pub(super) compile_id: u64,
}

impl Blob {
    /// Whether it is a method's: compiled, or the way to a native one.
    #[must_use]
    pub const fn is_method(&self) -> bool {
        self.kind.is_method()
    }

    /// The number of its compilation, of a method; 0 of other code.
    #[must_use]
    pub fn compile_id(&self) -> u32 {
        let id = if self.is_method() { self.compile_id } else { 0 };
        u32::try_from(id).unwrap_or_default()
    }
}

/// What kind of code a blob has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlobKind {
    /// A method, compiled.
    Compiled,
    /// The way from Java to a native method.
    Native,
    /// The interpreter.
    Interpreter,
    /// What a virtual thread's frames return to while those that called them are in the Java heap.
    Continuation,
    /// Anything else.
    Stub,
}

impl BlobKind {
    pub(super) const fn is_method(self) -> bool {
        matches!(self, Self::Compiled | Self::Native)
    }

    pub(super) fn of(name: &str) -> Self {
        match name {
            "nmethod" => Self::Compiled,
            "native nmethod" => Self::Native,
            "Interpreter" => Self::Interpreter,
            // JDK 21 and 25 differ in a space.
            name if name.starts_with("StubRoutines (continuation") => Self::Continuation,
            _ => Self::Stub,
        }
    }
}

/// Where the code heaps are, of which there is at least one. None before the JVM has its interpreter: it makes one heap after
/// the other, and one that is missing here would not be known for what it is.
pub(super) fn heaps(memory: &impl Memory, layout: &CodeCacheLayout) -> Result<Vec<CodeHeap>, Error> {
    if layout.interpreter.is_some_and(|interpreter| memory.pointer(interpreter).is_none_or(|at| at == 0)) {
        return Err(Error::Unreadable("its interpreter"));
    }
    let (data, count) = layout.heaps.read(memory).ok_or(Error::Unreadable("its code heaps"))?;
    let mut heaps: Vec<CodeHeap> = Vec::new();
    for index in 0..count {
        let heap = memory.pointer(data.wrapping_add(WORD * index));
        let heap = heap.and_then(|heap| layout.heap(memory, heap));
        heaps.extend(
            heap.filter(|new| heaps.iter().all(|heap| heap.end <= new.begin || new.end <= heap.begin)),
        );
    }
    if heaps.is_empty() { Err(Error::Unreadable("its code heaps")) } else { Ok(heaps) }
}

impl CodeCacheLayout {
    fn heap(&self, memory: &impl Memory, at: u64) -> Option<CodeHeap> {
        let begin = memory.pointer(at.wrapping_add(self.low))?;
        let end = memory.pointer(at.wrapping_add(self.end))?;
        let segment_map = memory.pointer(at.wrapping_add(self.segment_map))?;
        let segment_log2 = self.segment_log2.read(memory, at)?;
        let bytes = end.checked_sub(begin)?;
        let is_possible = (1..=MAX_HEAP_BYTES).contains(&bytes)
            && begin.is_multiple_of(WORD)
            && begin != 0
            && SEGMENT_LOG2.contains(&segment_log2);
        let segment_log2 = u32::try_from(segment_log2).ok()?;
        is_possible.then_some(CodeHeap { begin, end, segment_map, segment_log2, reserved: 0 })
    }

    /// What the kernel side has to know; `None` when these structures are not laid out in words.
    pub(super) fn for_kernel(&self, heaps: &[CodeHeap]) -> Option<CodeCache> {
        let word = |bytes: u64| {
            let words = bytes.is_multiple_of(KERNEL_WORD).then_some(bytes / KERNEL_WORD)?;
            u32::try_from(words).ok().filter(|_| bytes < MAX_HEADER_BYTES as u64)
        };
        let in_blob = |field: Field| word(self.block_bytes.checked_add(field.offset)?);
        let sized = |field: Field, width| (field.width == width).then(|| in_blob(field))?;
        let end = |bytes: u64| {
            let bytes = self.block_bytes.checked_add(bytes)?;
            u32::try_from(bytes).ok().filter(|bytes| u64::from(*bytes) < MAX_HEADER_BYTES as u64)
        };
        let (is_relative, begin, code_end) = match self.blob.code {
            CodeRange::Addresses { begin, end } => (0, sized(begin, 8)?, sized(end, 8)?),
            CodeRange::Offsets { begin, end } => (1, sized(begin, 4)?, sized(end, 4)?),
        };
        let width = if is_relative == 0 { 8 } else { 4 };
        let known_ways = self.blob.ways_out.as_ref().and_then(|ways| {
            let by_handle = ways.of_method_handles.and_then(|field| sized(field, width)).unwrap_or_default();
            Some(([sized(ways.of_calls, width)?, by_handle], sized(ways.original, 4)?))
        });
        let (ways_out, original) = known_ways.unwrap_or_default();
        let mut known = CodeCache {
            heaps: [CodeHeap::default(); MAX_HEAPS],
            header_bytes: end(self.blob.bytes as u64)?,
            plain_bytes: end(self.blob.plain_bytes)?,
            used: word(self.block_used.offset)?,
            blob: word(self.block_bytes)?,
            name: sized(self.blob.name, 8)?,
            frame_size: sized(self.blob.frame_size, 4)?,
            code_begin: begin,
            code_end,
            is_relative,
            compile_id: sized(self.blob.compile_id, 4)?,
            ways_out,
            original,
            reserved: 0,
            continuations: Continuations::default(),
        };
        known.heaps.iter_mut().zip(heaps).for_each(|(to, heap)| *to = *heap);
        Some(known)
    }

    /// The code that the call in front of a return address is in; `text` reads its name.
    pub(super) fn find(
        &self,
        memory: &impl Memory,
        heaps: &[CodeHeap],
        return_address: u64,
        text: impl FnOnce(u64) -> Option<String>,
    ) -> Option<Blob> {
        let call = return_address.checked_sub(1)?;
        let heap = heaps.iter().find(|heap| (heap.begin..heap.end).contains(&call))?;
        let block = block_of(memory, heap, call)?;
        let block_bytes = usize::try_from(self.block_bytes).ok().filter(|bytes| *bytes < MAX_HEADER_BYTES)?;
        let at = block.checked_add(self.block_bytes)?;
        let copy = self.blob.header(memory, block, block_bytes)?;
        let (header, copy) = copy.split_at_checked(block_bytes)?;
        let is_used = self.block_used.of(header)? & 0xff != 0;
        let mut blob = self.blob.parse(at, copy).filter(|blob| is_used && blob.code.contains(&call))?;
        blob.name = text(self.blob.name.of(copy)?)?;
        blob.kind = BlobKind::of(&blob.name);
        Some(blob)
    }
}

impl BlobLayout {
    /// A copy of so many bytes from an address on, and of the blob's header that follows them. A small blob can be the last one
    /// in memory.
    fn header(&self, memory: &impl Memory, at: u64, before: usize) -> Option<Vec<u8>> {
        let plain = || memory.bytes(at, before + usize::try_from(self.plain_bytes).ok()?);
        memory.bytes(at, before + self.bytes).or_else(plain)
    }
}

/// The start of the block that an address is in: a byte a segment says how far back to go.
fn block_of(memory: &impl Memory, heap: &CodeHeap, address: u64) -> Option<u64> {
    let mut segment = address.checked_sub(heap.begin)? >> heap.segment_log2;
    let mut map = Vec::new();
    let mut first = 0;
    for _ in 0..MAX_STEPS {
        if map.is_empty() || segment < first {
            let stretch = if map.is_empty() { FIRST_STRETCH } else { STRETCH };
            first = (segment + 1).saturating_sub(stretch);
            let length = usize::try_from(segment + 1 - first).ok()?;
            map = memory.bytes(heap.segment_map.wrapping_add(first), length)?;
        }
        match *map.get(usize::try_from(segment - first).ok()?)? {
            UNUSED => return None,
            0 => return heap.begin.checked_add(segment << heap.segment_log2),
            back => segment = segment.checked_sub(u64::from(back))?,
        }
    }
    None
}
