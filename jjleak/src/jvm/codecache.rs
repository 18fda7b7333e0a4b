//! The code cache: heaps of blocks, each with a blob of machine code (`src/hotspot/share/memory/heap.hpp` and
//! `code/codeBlob.hpp` in the JDK). It is searched one address at a time, as the kernel side does: see
//! [`jjleak_common::jvm`].

use std::ops::Range;

use jjleak_common::jvm::{CodeCache, CodeHeap, Continuations, MAX_HEADER_BYTES, MAX_HEAPS};

use super::blob::{Blob, BlobKind};
use super::structs::{Field, Structs};
use super::{Error, Memory};

/// Maximum size of a heap. HotSpot allows up to 2 GiB; the default is 240 MiB for all heaps.
const MAX_HEAP_BYTES: u64 = 2 << 30;
/// log2 of a heap's segment size in bytes; 7 by default (`-XX:CodeCacheSegmentSize`).
const SEGMENT_LOG2: Range<u64> = 5..17;
/// Number of segment map entries read first, backwards, to find the start of a block. Few blocks exceed some
/// hundred.
const FIRST_STRETCH: u64 = 256;
/// Number of segment map entries read at a time for larger blocks.
const STRETCH: u64 = 4096;
/// Maximum number of steps to the start of a block, each over up to 254 segments: enough for a whole heap.
const MAX_STEPS: u32 = 1 << 16;
/// Segment map entry of segments that have never been used.
const UNUSED: u8 = 0xff;
const WORD: u64 = 8;
/// Unit of the kernel side's offsets, in bytes.
const KERNEL_WORD: u64 = 4;

/// Layout of the code cache.
#[derive(Debug)]
pub(super) struct CodeCacheLayout {
    heaps: Heaps,
    /// Address of the pointer to the interpreter, which the JVM creates after all heaps and before it runs
    /// Java.
    interpreter: Option<u64>,
    /// Field of the interpreter with the address of its code.
    interpreter_code: Option<Field>,
    /// Address of the pointer into the stub by which the JVM calls Java.
    call_stub: Option<u64>,
    low: u64,
    end: u64,
    segment_map: u64,
    segment_log2: Field,
    block_bytes: u64,
    block_used: Field,
    pub(super) blob: BlobLayout,
}

/// Location of the pointers to the heaps.
#[derive(Debug)]
enum Heaps {
    /// In an array.
    Many { array: u64, length: Field, data: Field },
    /// A single heap; until JDK 8.
    One { pointer: u64 },
}

/// Layout of a blob.
#[derive(Debug)]
pub(super) struct BlobLayout {
    name: Field,
    size: Field,
    frame_size: Field,
    code: CodeRange,
    method: Field,
    compile_id: Field,
    deopt_handlers: Option<DeoptHandlers>,
    /// Bytes of a blob that contain all these fields.
    bytes: usize,
    /// Bytes that contain the fields of every blob, compiled or not.
    plain_bytes: u64,
}

/// Deoptimization handlers, by which compiled code continues in the interpreter when it is discarded, located
/// as its code is; and the frame slot that then holds the original return address.
#[derive(Debug)]
struct DeoptHandlers {
    of_calls: Field,
    /// JDK 26 and later have only the handler for calls.
    of_method_handles: Option<Field>,
    original: Field,
}

impl DeoptHandlers {
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

/// Representation of a blob's code range.
#[derive(Debug)]
enum CodeRange {
    /// By addresses; until JDK 22.
    Addresses { begin: Field, end: Field },
    /// By offsets from its start.
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
            interpreter_code: field("StubQueue", "_stub_buffer").ok(),
            call_stub: structs.address(&[("StubRoutines", "_call_stub_return_address")]).ok(),
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

    /// Address of the first heap pointer, and their number. `None` before there are any.
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
        let deopt_handlers = DeoptHandlers::of(structs, matches!(code, CodeRange::Offsets { .. }));
        let mut layout = Self {
            name: field("_name")?,
            size: field("_size")?,
            frame_size: field("_frame_size")?,
            code,
            method: structs.field(&[("CompiledMethod", "_method"), ("nmethod", "_method")])?,
            compile_id: structs.field(&[("nmethod", "_compile_id")])?,
            deopt_handlers,
            bytes: 0,
            plain_bytes: 0,
        };
        let (CodeRange::Addresses { begin, end } | CodeRange::Offsets { begin, end }) = layout.code;
        let last = |fields: &[Field]| fields.iter().map(|field| field.end()).max().unwrap_or_default();
        layout.plain_bytes = last(&[layout.name, layout.size, layout.frame_size, begin, end]);
        let deopt_handlers = layout.deopt_handlers.as_ref().map_or(0, DeoptHandlers::end);
        let end = layout.plain_bytes.max(last(&[layout.method, layout.compile_id])).max(deopt_handlers);
        let fits = |end: &usize| *end < MAX_HEADER_BYTES;
        layout.bytes = usize::try_from(end).ok().filter(fits).ok_or_else(too_large)?;
        Ok(layout)
    }

    /// Decodes a copy of the start of the blob at `at`, except its name and kind.
    fn parse(&self, at: u64, copy: &[u8]) -> Option<Blob> {
        let code = match self.code {
            CodeRange::Addresses { begin, end } => begin.of(copy)?..end.of(copy)?,
            CodeRange::Offsets { begin, end } => {
                at.wrapping_add(begin.of(copy)?)..at.wrapping_add(end.of(copy)?)
            }
        };
        let size = self.size.of(copy)?;
        let is_inside = at <= code.start && code.start < code.end && code.end <= at.wrapping_add(size);
        let frame_words = u32::try_from(self.frame_size.of(copy)?).ok()?.cast_signed();
        is_inside.then(|| Blob {
            at,
            size,
            code,
            kind: BlobKind::Stub,
            name: String::new(),
            method: self.method.of(copy).unwrap_or_default(),
            compile_id: self.compile_id.of(copy).unwrap_or_default(),
            frame_words,
            deopt_handlers: self.deopt_handlers_of(at, copy),
        })
    }

    /// Addresses of the deoptimization handlers.
    fn deopt_handlers_of(&self, at: u64, copy: &[u8]) -> [Option<u64>; 2] {
        let start = if let CodeRange::Offsets { .. } = self.code { at } else { 0 };
        let address = |field: Field| Some(start.wrapping_add(field.of(copy)?));
        self.deopt_handlers.as_ref().map_or([None; 2], |handlers| {
            [address(handlers.of_calls), handlers.of_method_handles.and_then(address)]
        })
    }

    /// Returns whether the blob is still in place.
    pub(super) fn is_current(&self, memory: &impl Memory, blob: &Blob) -> bool {
        let copy = self.header(memory, blob.at, 0);
        copy.and_then(|copy| self.parse(blob.at, &copy)).is_some_and(|now| {
            (now.code, now.method, now.compile_id) == (blob.code.clone(), blob.method, blob.compile_id)
        })
    }
}

fn too_large() -> Error {
    Error::Unknown("blob of a plausible size".to_owned())
}

/// All code heaps, at least one. Fails before the JVM has its interpreter: it creates its heaps one by one,
/// and code in a missing one would not be recognized.
pub(super) fn heaps(memory: &impl Memory, layout: &CodeCacheLayout) -> Result<Vec<CodeHeap>, Error> {
    if layout.interpreter.is_some_and(|interpreter| memory.pointer(interpreter).is_none_or(|at| at == 0)) {
        return Err(Error::Unreadable("interpreter"));
    }
    let (data, count) = layout.heaps.read(memory).ok_or(Error::Unreadable("code heaps"))?;
    let mut heaps: Vec<CodeHeap> = Vec::new();
    for index in 0..count {
        let heap = memory.pointer(data.wrapping_add(WORD * index));
        let heap = heap.and_then(|heap| layout.heap(memory, heap));
        heaps.extend(
            heap.filter(|new| heaps.iter().all(|heap| heap.end <= new.begin || new.end <= heap.begin)),
        );
    }
    if heaps.is_empty() { Err(Error::Unreadable("code heaps")) } else { Ok(heaps) }
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

    /// The layout for the kernel side; `None` if these structures are not laid out in words.
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
        let known_handlers = self.blob.deopt_handlers.as_ref().and_then(|handlers| {
            let by_handle =
                handlers.of_method_handles.and_then(|field| sized(field, width)).unwrap_or_default();
            Some(([sized(handlers.of_calls, width)?, by_handle], sized(handlers.original, 4)?))
        });
        let (deopt_handlers, original) = known_handlers.unwrap_or_default();
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
            deopt_handlers,
            original,
            reserved: 0,
            continuations: Continuations::default(),
        };
        known.heaps.iter_mut().zip(heaps).for_each(|(to, heap)| *to = *heap);
        Some(known)
    }

    /// Addresses in code that stays where it is: the interpreter, and the stub by which the JVM calls Java.
    pub(super) fn lasting(&self, memory: &impl Memory) -> impl Iterator<Item = u64> {
        let interpreter =
            || self.interpreter_code?.read(memory, memory.pointer(self.interpreter?)?)?.checked_add(1);
        [interpreter(), self.call_stub.and_then(|at| memory.pointer(at))].into_iter().flatten()
    }

    /// The code that contains the call before a return address; `text` reads its name.
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
    /// Copies `before` bytes from an address on, and the blob's header after them. A small blob can be the
    /// last one in memory.
    fn header(&self, memory: &impl Memory, at: u64, before: usize) -> Option<Vec<u8>> {
        let plain = || memory.bytes(at, before + usize::try_from(self.plain_bytes).ok()?);
        memory.bytes(at, before + self.bytes).or_else(plain)
    }
}

/// The start of the block that contains an address. The segment map has a byte per segment that tells how far
/// to go back.
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
