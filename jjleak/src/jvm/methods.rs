//! Java methods: names, files and lines (`src/hotspot/share/oops/` in the JDK).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::rc::Rc;

use jjleak_common::jvm::CodeHeap;

use super::blob::{Blob, BlobKind};
use super::codecache::CodeCacheLayout;
use super::memory::{MAX_TEXT, SHORT_TEXT};
use super::scopes::{Scope, ScopeLayout};
use super::structs::{Field, Structs};
use super::unsigned5::Encoding;
use super::{Error, Memory, lines, names};

/// Flag of a method with a line number table (`constMethodFlags.hpp`).
const HAS_LINES: u64 = 1;
/// Maximum length of a line number table: two bytes per bytecode of the longest method.
const MAX_LINE_BYTES: u64 = 128 << 10;
/// Bytes of a `ConstMethod` read first; most fit in it with bytecode and lines.
const START_BYTES: usize = 512;
/// Maximum size of a `ConstMethod` before its bytecode; JDK 11 to 25 have up to 64.
const MAX_FIXED_BYTES: usize = 256;
/// Maximum size of a `ConstantPool` before its entries; actual ones have up to 72.
const MAX_POOL_BYTES: u64 = 256;
const WORD: u64 = 8;
/// First version whose interpreter frames also hold the method's class, which moves the bytecode pointer down
/// by a word.
const FRAMES_OF_JDK_9: u64 = 9;

/// Layout of a method and the structures that it refers to.
#[derive(Debug)]
pub(super) struct MethodLayout {
    fixed: Field,
    pool: Field,
    flags: Field,
    words: Field,
    code_size: Field,
    name: Field,
    code: u64,
    pool_length: Field,
    holder: Field,
    /// Bytes of a pool that contain these fields.
    pool_bytes: usize,
    entries: u64,
    source: Source,
    class_name: Field,
    symbol_length: Field,
    symbol_body: Field,
    knows_bytecode: bool,
}

/// The structure that holds the index of the source file's name.
#[derive(Debug)]
enum Source {
    Pool(Field),
    Class(Field),
    Unknown,
}

impl MethodLayout {
    pub(super) fn of(structs: &Structs, version: u64) -> Result<Self, Error> {
        let field = |structure, name| structs.field(&[(structure, name)]);
        let source = match field("ConstantPool", "_source_file_name_index") {
            Ok(field) => Source::Pool(field),
            Err(_) => {
                field("InstanceKlass", "_source_file_name_index").map_or(Source::Unknown, Source::Class)
            }
        };
        let (pool_length, holder) =
            (field("ConstantPool", "_length")?, field("ConstantPool", "_pool_holder")?);
        let in_pool = if let Source::Pool(index) = source { index.end() } else { 0 };
        let pool_bytes = pool_length.end().max(holder.end()).max(in_pool);
        let too_large = || Error::Unknown("constant pool of a plausible size".to_owned());
        let pool_bytes = Some(pool_bytes).filter(|bytes| *bytes <= MAX_POOL_BYTES).ok_or_else(too_large)?;
        Ok(Self {
            fixed: field("Method", "_constMethod")?,
            pool: field("ConstMethod", "_constants")?,
            flags: structs.field(&[("ConstMethod", "_flags"), ("ConstMethod", "_flags._flags")])?,
            words: field("ConstMethod", "_constMethod_size")?,
            code_size: field("ConstMethod", "_code_size")?,
            name: field("ConstMethod", "_name_index")?,
            code: structs.size("ConstMethod")?,
            pool_length,
            holder,
            pool_bytes: usize::try_from(pool_bytes).map_err(|_| too_large())?,
            entries: structs.size("ConstantPool")?,
            source,
            class_name: field("Klass", "_name")?,
            symbol_length: field("Symbol", "_length")?,
            symbol_body: field("Symbol", "_body")?,
            knows_bytecode: version >= FRAMES_OF_JDK_9,
        })
    }

    /// Returns whether the kernel side finds the bytecode pointer of interpreted frames.
    pub(super) const fn knows_bytecode(&self) -> bool {
        self.knows_bytecode
    }

    /// The symbol that names a class.
    pub(super) fn class_symbol(&self, memory: &impl Memory, class: u64) -> Option<u64> {
        self.class_name.read(memory, class)
    }

    /// Name of a class, in HotSpot's notation.
    pub(super) fn class_name(&self, memory: &impl Memory, class: u64) -> Option<String> {
        self.symbol(memory, self.class_name.read(memory, class)?)
    }

    /// The method whose `ConstMethod` is at `fixed` and begins with `start`.
    fn method(&self, memory: &impl Memory, fixed: u64, start: &[u8], pool: &Pool) -> Option<Method> {
        let name = self.pooled(memory, pool, self.name.of(start)?)?;
        let code = fixed.wrapping_add(self.code);
        let code_size = self.code_size.of(start)?;
        Some(Method {
            name: names::method(&pool.class, &name),
            file: pool.file.clone(),
            lines: self.lines(memory, fixed, start, code.wrapping_add(code_size)).unwrap_or_default(),
            code,
            code_size,
        })
    }

    /// The constant pool of a class.
    fn pool(&self, memory: &impl Memory, at: u64) -> Option<Pool> {
        let header = memory.bytes(at, self.pool_bytes)?;
        let class = self.holder.of(&header)?;
        let source = match self.source {
            Source::Pool(index) => index.of(&header),
            Source::Class(index) => index.read(memory, class),
            Source::Unknown => None,
        };
        let class_name_at = self.class_name.read(memory, class)?;
        let mut pool = Pool {
            at,
            length: self.pool_length.of(&header)?,
            class: self.symbol(memory, class_name_at)?,
            file: String::new(),
            header,
            class_at: class,
            class_name_at,
        };
        let file = source.filter(|index| *index != 0).and_then(|index| self.pooled(memory, &pool, index));
        pool.file = file.unwrap_or_default();
        Some(pool)
    }

    /// Returns whether a pool still belongs to the class that it was read for.
    fn is_current(&self, memory: &impl Memory, pool: &Pool) -> bool {
        memory.bytes(pool.at, self.pool_bytes).is_some_and(|header| header == pool.header)
            && self.class_name.read(memory, pool.class_at) == Some(pool.class_name_at)
    }

    /// The line number table of the `ConstMethod` at `fixed`; it begins where the bytecode ends.
    fn lines(&self, memory: &impl Memory, fixed: u64, start: &[u8], begin: u64) -> Option<Vec<u8>> {
        if self.flags.of(start)? & HAS_LINES == 0 {
            return None;
        }
        let end = fixed.wrapping_add(WORD * self.words.of(start)?.min(1 << 20));
        let length = usize::try_from(end.checked_sub(begin)?.min(MAX_LINE_BYTES)).ok()?;
        let from = usize::try_from(begin.checked_sub(fixed)?).ok()?;
        let copied = start.get(from..from.checked_add(length)?).map(<[u8]>::to_vec);
        copied.or_else(|| memory.bytes(begin, length))
    }

    /// The string at this index of a constant pool.
    fn pooled(&self, memory: &impl Memory, pool: &Pool, index: u64) -> Option<String> {
        let entry = pool.at.wrapping_add(self.entries).wrapping_add(WORD * index);
        self.symbol(memory, (index < pool.length).then(|| memory.pointer(entry))??)
    }

    /// A HotSpot `Symbol`, a string with its length in front. Nearly all fit in one read.
    pub(super) fn symbol(&self, memory: &impl Memory, at: u64) -> Option<String> {
        let mut start = [0; SHORT_TEXT];
        let read = memory.read(at, &mut start);
        let start = start.get(..read)?;
        let length = usize::try_from(self.symbol_length.of(start)?).ok()?.min(MAX_TEXT);
        let body = usize::try_from(self.symbol_body.offset).ok()?;
        let bytes = match start.get(body..body.checked_add(length)?) {
            Some(bytes) => bytes.to_vec(),
            None => memory.bytes(at.wrapping_add(self.symbol_body.offset), length)?,
        };
        let text = String::from_utf8(bytes).ok()?;
        let is_name = !text.is_empty() && !text.contains(char::is_control);
        is_name.then_some(text)
    }
}

/// Data that all methods of a class share.
#[derive(Debug)]
struct Pool {
    at: u64,
    length: u64,
    /// Name of the class, in HotSpot's notation.
    class: String,
    /// Source file; empty if unknown.
    file: String,
    /// The pool's header and the start of what it points to. They change if another class takes its place.
    header: Vec<u8>,
    class_at: u64,
    class_name_at: u64,
}

#[derive(Debug)]
struct Method {
    name: String,
    file: String,
    lines: Vec<u8>,
    /// Address of the bytecode.
    code: u64,
    code_size: u64,
}

/// A Java method with a source position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JavaFrame {
    /// Class and method.
    pub name: String,
    /// Source file, without its folder; empty if unknown.
    pub file: String,
    /// Line; 0 if unknown.
    pub line: u32,
}

/// Cache of methods by address. Each entry is compared with current memory before use: classes are unloaded,
/// and others take their place.
#[derive(Debug, Default)]
pub struct KnownMethods(HashMap<u64, Known>);

/// Maximum number of cached methods; a large application has as many.
const MAX_KNOWN: usize = 1 << 17;
/// Attempts at reading a method whose class changes meanwhile. One retry is enough: the collector takes far
/// longer to unload a class.
const TIMES_READ: u32 = 2;

#[derive(Debug)]
struct Known {
    /// Address of the `ConstMethod` and its first bytes: unchanged while the method exists.
    fixed: u64,
    header: Vec<u8>,
    method: Rc<Method>,
}

/// Names the methods on stacks. Class data is reused for as long as this value lives and the class is in
/// place.
#[derive(Debug)]
pub struct Methods<'a, M> {
    memory: &'a M,
    layout: &'a MethodLayout,
    code_cache: &'a CodeCacheLayout,
    scopes: Option<&'a ScopeLayout>,
    known: &'a mut KnownMethods,
    /// Constant pools by address, one per class.
    pools: HashMap<u64, Pool>,
    /// Kinds of code by the address of their name, which is constant in the library.
    kinds: HashMap<u64, String>,
}

impl<'a, M: Memory> Methods<'a, M> {
    pub(super) fn new(
        memory: &'a M,
        layout: &'a MethodLayout,
        code_cache: &'a CodeCacheLayout,
        scopes: Option<&'a ScopeLayout>,
        known: &'a mut KnownMethods,
    ) -> Self {
        Self { memory, layout, code_cache, scopes, known, pools: HashMap::new(), kinds: HashMap::new() }
    }

    /// The code before a return address now.
    pub fn find(&mut self, heaps: &[CodeHeap], return_address: u64) -> Option<Blob> {
        let (memory, kinds) = (self.memory, &mut self.kinds);
        self.code_cache.find(memory, heaps, return_address, |at| {
            if let Some(known) = kinds.get(&at) {
                return Some(known.clone());
            }
            let name = memory.text(at)?;
            if BlobKind::of(&name).is_method() {
                kinds.insert(at, name.clone());
            }
            Some(name)
        })
    }

    /// The methods at a return address in compiled code, innermost first: each is inlined into the next.
    /// Empty for other code, and for code that has been replaced.
    pub fn compiled(&mut self, blob: &Blob, return_address: u64) -> Vec<JavaFrame> {
        let scopes = match blob.kind {
            BlobKind::Compiled => self.scopes.and_then(|scopes| scopes.at(self.memory, blob, return_address)),
            BlobKind::Native => None,
            BlobKind::Interpreter | BlobKind::Continuation | BlobKind::Stub => return Vec::new(),
        };
        let frames: Option<Vec<_>> =
            scopes.and_then(|scopes| scopes.iter().map(|scope| self.frame(*scope)).collect());
        // Code that is still in place has been there, with all its methods, since before anything was read of
        // it.
        let frames = frames.filter(|_| self.code_cache.blob.is_current(self.memory, blob));
        frames.unwrap_or_else(|| self.without_line(blob).into_iter().collect())
    }

    /// The method of an interpreted frame. `low_bits` are the lowest 16 bits of its bytecode pointer: if they
    /// do not point into the method's bytecode, they belonged to another method, whose class has been
    /// unloaded. Native methods have no bytecode.
    pub fn interpreted(&mut self, method: u64, low_bits: u16) -> Option<JavaFrame> {
        let known = self.method(method)?;
        #[expect(clippy::cast_possible_truncation, reason = "the lowest bits are what is compared")]
        let index = u64::from(low_bits.wrapping_sub(known.code as u16));
        let has_bytecode = self.layout.knows_bytecode && known.code_size != 0;
        if has_bytecode && index >= known.code_size {
            return None;
        }
        let bytecode_index = u32::try_from(index).ok().filter(|_| has_bytecode);
        Some(self.at(&known, bytecode_index))
    }

    fn without_line(&mut self, blob: &Blob) -> Option<JavaFrame> {
        let method = self.method(blob.method)?;
        self.code_cache.blob.is_current(self.memory, blob).then(|| self.at(&method, None))
    }

    fn frame(&mut self, scope: Scope) -> Option<JavaFrame> {
        let method = self.method(scope.method)?;
        Some(self.at(&method, Some(scope.bytecode_index)))
    }

    fn at(&self, method: &Method, bytecode_index: Option<u32>) -> JavaFrame {
        let encoding = self.scopes.map_or(Encoding::WithoutZero, ScopeLayout::encoding);
        let line = bytecode_index.and_then(|index| lines::line_of(&method.lines, encoding, index));
        JavaFrame { name: method.name.clone(), file: method.file.clone(), line: line.unwrap_or_default() }
    }

    fn method(&mut self, at: u64) -> Option<Rc<Method>> {
        (0..TIMES_READ).find_map(|_| self.read(at))
    }

    /// Also `None` if the method's class has been unloaded meanwhile, or since its pool was read: its
    /// successor's methods must not get its name.
    fn read(&mut self, at: u64) -> Option<Rc<Method>> {
        let (memory, layout) = (self.memory, self.layout);
        let fixed = layout.fixed.read(memory, at)?;
        let mut start = [0; START_BYTES];
        let read = memory.read(fixed, &mut start);
        let start = start.get(..read)?;
        let header = start.get(..usize::try_from(layout.code).ok()?.min(MAX_FIXED_BYTES))?;
        let known = self.known.0.get(&at).filter(|known| known.fixed == fixed && known.header == header);
        if let Some(known) = known {
            return Some(Rc::clone(&known.method));
        }
        let pool_at = layout.pool.of(header)?;
        let pool = match self.pools.entry(pool_at) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(layout.pool(memory, pool_at)?),
        };
        let method = layout.method(memory, fixed, start, pool);
        if !layout.is_current(memory, pool) {
            self.pools.remove(&pool_at);
            return None;
        }
        let method = Rc::new(method?);
        if self.known.0.len() == MAX_KNOWN {
            self.known.0.clear();
        }
        self.known.0.insert(at, Known { fixed, header: header.to_vec(), method: Rc::clone(&method) });
        Some(method)
    }
}
