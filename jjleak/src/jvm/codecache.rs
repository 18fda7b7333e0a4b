//! The code cache: heaps of blocks, each with a blob of machine code (`src/hotspot/share/memory/heap.hpp` and
//! `code/codeBlob.hpp` in the JDK).

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use super::structs::{Field, Structs};
use super::{Error, Memory};

/// Heaps of a code cache; HotSpot has one to three, four with the AOT compiler.
const MAX_HEAPS: u64 = 8;
/// Code caches are read up to here: the largest that can be asked for has 2 GiB, the default 240 MiB.
const MAX_BYTES: u64 = 512 << 20;
/// Most blobs that are looked at: ten times as many as a large application has.
const MAX_BLOBS: usize = 1 << 18;
/// log2 of the bytes of a heap's segment; 7 unless set otherwise (`-XX:CodeCacheSegmentSize`).
const SEGMENT_LOG2: Range<u64> = 5..17;
/// Bytes that are read at a time.
const WINDOW: usize = 128 << 10;
const WORD: u64 = 8;

/// Where things are in the code cache.
#[derive(Debug)]
pub(super) struct CodeCacheLayout {
    heaps: u64,
    length: Field,
    data: Field,
    low: u64,
    high: u64,
    segment_log2: Field,
    block_bytes: u64,
    block_length: Field,
    block_used: Field,
    pub(super) blob: BlobLayout,
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
    /// Bytes of a blob that all of these are in.
    bytes: usize,
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
        let header = field("HeapBlock", "_header")?.offset;
        let in_header = |name| {
            let field = field("HeapBlock::Header", name)?;
            Ok::<_, Error>(Field { offset: header.wrapping_add(field.offset), ..field })
        };
        Ok(Self {
            heaps: structs.address(&[("CodeCache", "_heaps")])?,
            length: structs.field(&[("GrowableArrayBase", "_len"), ("GenericGrowableArray", "_len")])?,
            data: field("GrowableArray<int>", "_data")?,
            low: memory.wrapping_add(field("VirtualSpace", "_low")?.offset),
            high: memory.wrapping_add(field("VirtualSpace", "_high")?.offset),
            segment_log2: field("CodeHeap", "_log2_segment_size")?,
            block_bytes: structs.size("HeapBlock")?,
            block_length: in_header("_length")?,
            block_used: in_header("_used")?,
            blob: BlobLayout::of(structs)?,
        })
    }
}

impl BlobLayout {
    fn of(structs: &Structs) -> Result<Self, Error> {
        let field = |name| structs.field(&[("CodeBlob", name)]);
        let code = match (field("_code_begin"), field("_code_end")) {
            (Ok(begin), Ok(end)) => CodeRange::Addresses { begin, end },
            _ => CodeRange::Offsets { begin: field("_code_offset")?, end: field("_data_offset")? },
        };
        let mut layout = Self {
            name: field("_name")?,
            size: field("_size")?,
            frame_size: field("_frame_size")?,
            code,
            method: structs.field(&[("CompiledMethod", "_method"), ("nmethod", "_method")])?,
            compile_id: structs.field(&[("nmethod", "_compile_id")])?,
            bytes: 0,
        };
        let (CodeRange::Addresses { begin, end } | CodeRange::Offsets { begin, end }) = layout.code;
        let fields =
            [layout.name, layout.size, layout.frame_size, begin, end, layout.method, layout.compile_id];
        let end = fields.iter().map(|field| field.end()).max().unwrap_or_default();
        // A hostile description can say anything; HotSpot's blobs have headers of up to 376 bytes.
        layout.bytes = usize::try_from(end).ok().filter(|end| *end <= 4096).ok_or_else(too_large)?;
        Ok(layout)
    }

    /// What a copy of the start of the blob at `at` says, without its kind.
    fn parse(&self, at: u64, copy: &[u8]) -> Option<Blob> {
        let code = match self.code {
            CodeRange::Addresses { begin, end } => begin.of(copy)?..end.of(copy)?,
            CodeRange::Offsets { begin, end } => {
                at.wrapping_add(begin.of(copy)?)..at.wrapping_add(end.of(copy)?)
            }
        };
        let frame_words = self.frame_size.of_signed(copy)?;
        let size = self.size.of(copy)?;
        let is_inside = at <= code.start && code.start < code.end && code.end <= at.wrapping_add(size);
        is_inside.then(|| Blob {
            at,
            size,
            code,
            frame_words: u32::try_from(frame_words).unwrap_or_default(),
            kind: BlobKind::Stub,
            name: Rc::from(""),
            method: self.method.of(copy).unwrap_or_default(),
            compile_id: self.compile_id.of(copy).unwrap_or_default(),
        })
    }

    /// Whether the blob is still in its place.
    pub(super) fn is_current(&self, memory: &impl Memory, blob: &Blob) -> bool {
        let copy = memory.bytes(blob.at, self.bytes);
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
    /// Size of its frames in words, with the return address; 0 where that is not fixed.
    pub frame_words: u32,
    /// What kind of code it is.
    pub kind: BlobKind,
    /// HotSpot's name for it: of a stub, what it does.
    pub name: Rc<str>,
    /// The `Method` of compiled code.
    pub(super) method: u64,
    pub(super) compile_id: u64,
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
    fn of(name: &str) -> Self {
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

/// The code of a JVM at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CodeView {
    /// Where code can be: what each heap has in use of its addresses.
    pub heaps: Vec<Range<u64>>,
    /// All code, by address.
    pub blobs: Vec<Blob>,
}

impl CodeView {
    /// Whether an address is one of generated code.
    #[must_use]
    pub fn contains(&self, address: u64) -> bool {
        self.heaps.iter().any(|heap| heap.contains(&address))
    }

    /// The code that a call in front of this return address is in.
    #[must_use]
    pub fn find(&self, return_address: u64) -> Option<&Blob> {
        let call = return_address.checked_sub(1)?;
        let after = self.blobs.partition_point(|blob| blob.code.start <= call);
        self.blobs.get(after.checked_sub(1)?).filter(|blob| blob.code.contains(&call))
    }
}

/// Reads the code cache.
pub(super) fn read(memory: &impl Memory, layout: &CodeCacheLayout) -> Result<CodeView, Error> {
    let heaps = || {
        let array = memory.pointer(layout.heaps).filter(|array| *array != 0)?;
        let count = layout.length.read(memory, array)?.min(MAX_HEAPS);
        Some((layout.data.read(memory, array)?, count))
    };
    let (data, count) = heaps().ok_or(Error::Unreadable("its code heaps"))?;
    let mut view = CodeView::default();
    let mut names = HashMap::new();
    for index in 0..count {
        let heap = memory.pointer(data.wrapping_add(WORD * index));
        let room = view.heaps.iter().fold(MAX_BYTES, |room, heap| room.saturating_sub(heap.end - heap.start));
        let heap = heap.and_then(|heap| Heap::read(memory, layout, heap, room));
        if let Some(heap) = heap.filter(|heap| !view.overlaps(&heap.addresses)) {
            heap.blobs(memory, layout, &mut names, &mut view.blobs);
            view.heaps.push(heap.addresses);
        }
    }
    view.blobs.sort_by_key(|blob| blob.code.start);
    let mut end = 0;
    view.blobs.retain(|blob| {
        let is_free = blob.code.start >= end;
        if is_free {
            end = blob.code.end;
        }
        is_free
    });
    Ok(view)
}

impl CodeView {
    fn overlaps(&self, addresses: &Range<u64>) -> bool {
        self.heaps.iter().any(|heap| heap.start < addresses.end && addresses.start < heap.end)
    }
}

struct Heap {
    addresses: Range<u64>,
    segment_log2: u64,
}

impl Heap {
    fn read(memory: &impl Memory, layout: &CodeCacheLayout, at: u64, room: u64) -> Option<Self> {
        let low = memory.pointer(at.wrapping_add(layout.low))?;
        let high = memory.pointer(at.wrapping_add(layout.high))?;
        let segment_log2 = layout.segment_log2.read(memory, at)?;
        let bytes = high.checked_sub(low)?.min(room);
        let is_possible = bytes > 0 && SEGMENT_LOG2.contains(&segment_log2) && low != 0;
        is_possible.then(|| Self { addresses: low..low + bytes, segment_log2 })
    }

    /// Adds the blobs of all blocks that are in use. A block says how many segments it has; what has never been in use has
    /// none.
    fn blobs(
        &self,
        memory: &impl Memory,
        layout: &CodeCacheLayout,
        names: &mut HashMap<u64, Rc<str>>,
        blobs: &mut Vec<Blob>,
    ) {
        let header = usize::try_from(layout.block_bytes).unwrap_or(usize::MAX).min(WINDOW / 2);
        let mut window = Window::new(memory);
        let mut at = self.addresses.start;
        while at < self.addresses.end && blobs.len() < MAX_BLOBS {
            let Some(copy) = window.get(at, header + layout.blob.bytes) else { break };
            let Some(segments) = layout.block_length.of(copy).filter(|segments| *segments > 0) else { break };
            let is_used = layout.block_used.of(copy).is_some_and(|used| used & 0xff != 0);
            let blob = is_used.then(|| layout.blob.parse(at + header as u64, copy.get(header..)?)).flatten();
            let name = copy.get(header..).and_then(|copy| layout.blob.name.of(copy)).unwrap_or_default();
            let fits = |blob: &Blob| {
                self.addresses.contains(&blob.code.start) && blob.code.end <= self.addresses.end
            };
            if let Some(mut blob) = blob.filter(fits) {
                let name = names.entry(name).or_insert_with(|| memory.text(name).unwrap_or_default().into());
                blob.name = Rc::clone(name);
                blob.kind = BlobKind::of(name);
                blobs.push(blob);
            }
            let bytes = segments.checked_mul(1 << self.segment_log2);
            let Some(next) = bytes.and_then(|bytes| at.checked_add(bytes)) else { break };
            at = next;
        }
    }
}

/// A copy of a part of the memory, which moves on with what is asked for.
struct Window<'a, M> {
    memory: &'a M,
    at: u64,
    bytes: Vec<u8>,
    valid: usize,
}

impl<'a, M: Memory> Window<'a, M> {
    fn new(memory: &'a M) -> Self {
        Self { memory, at: 0, bytes: vec![0; WINDOW], valid: 0 }
    }

    fn get(&mut self, at: u64, length: usize) -> Option<&[u8]> {
        let inside = |this: &Self| {
            let offset = usize::try_from(at.checked_sub(this.at)?).ok()?;
            (offset.checked_add(length)? <= this.valid).then_some(offset)
        };
        let offset = if let Some(offset) = inside(self) {
            offset
        } else {
            self.at = at;
            self.valid = self.memory.read(at, &mut self.bytes);
            inside(self)?
        };
        self.bytes.get(offset..offset + length)
    }
}
