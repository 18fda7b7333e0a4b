//! A small x86-64 ELF file for tests: code that is never read, and its call frame information.

use std::io::Write;

use flate2::{Compression, write::ZlibEncoder};

/// Address of the loaded code; not the start of a page of the index.
pub(super) const CODE_ADDRESS: u64 = 0x1010;
/// Address of the loaded call frame information: within range of 32 bits, and above all code of these tests.
pub(super) const FRAMES_ADDRESS: u64 = 0x4000_0000;

const HEADERS_BYTES: u64 = 64 + 3 * 56;
/// Bytes of `.eh_frame_hdr`, which precedes `.eh_frame`.
const FRAME_HEADER_BYTES: u64 = 8;

/// Register numbers as single bytes, for instructions.
pub(super) const BASE: u8 = 3;
pub(super) const FP: u8 = 6;
pub(super) const SP: u8 = 7;
pub(super) const RA: u8 = 16;

/// CFA = stack pointer + 8, return address below it: the state at a function's entry.
pub(super) const AT_ENTRY: &[u8] = &[0x0c, SP, 8, 0x80 | RA, 1];

/// CFA = word at the stack pointer + 160, return address at the stack pointer + 168: what the kernel pushes for a signal handler.
pub(super) const KERNELS_FRAME: &[u8] =
    &[0x0f, 4, 0x70 + SP, 0xa0, 0x01, 0x06, 0x10, RA, 3, 0x70 + SP, 0xa8, 0x01];

/// Builder for entries of `.eh_frame` or `.debug_frame`.
pub(super) struct Frames {
    bytes: Vec<u8>,
    debug: bool,
}

impl Frames {
    pub(super) fn eh_frame() -> Self {
        Self { bytes: Vec::new(), debug: false }
    }

    pub(super) fn debug_frame() -> Self {
        Self { bytes: Vec::new(), debug: true }
    }

    /// Adds a CIE; returns its offset. `augmentation` follows `zR` in `.eh_frame`.
    pub(super) fn cie(&mut self, augmentation: &str, instructions: &[u8]) -> usize {
        let mut body = if self.debug { vec![0xff; 4] } else { vec![0; 4] };
        body.push(if self.debug { 3 } else { 1 });
        if !self.debug {
            body.extend(b"zR");
        }
        body.extend(augmentation.bytes().chain([0]));
        body.extend([1, 0x78, RA]); // alignment factors 1 and -8, return address register
        if !self.debug {
            body.extend([1, 0x1b]); // augmentation of one byte: addresses are relative, 4 bytes
        }
        body.extend(instructions);
        self.entry(&body)
    }

    /// Adds an FDE for the code from `begin` on.
    pub(super) fn fde(&mut self, cie: usize, begin: u64, len: u32, instructions: &[u8]) -> &mut Self {
        let at = self.bytes.len() + 4;
        let mut body = Vec::new();
        if self.debug {
            body.extend(u32::try_from(cie).unwrap().to_le_bytes());
            body.extend(begin.to_le_bytes());
            body.extend(u64::from(len).to_le_bytes());
        } else {
            body.extend(u32::try_from(at - cie).unwrap().to_le_bytes());
            let field = FRAMES_ADDRESS + FRAME_HEADER_BYTES + at as u64 + 4;
            body.extend(i32::try_from(begin.cast_signed() - field.cast_signed()).unwrap().to_le_bytes());
            body.extend(len.to_le_bytes());
            body.push(0); // no augmentation
        }
        body.extend(instructions);
        self.entry(&body);
        self
    }

    fn entry(&mut self, body: &[u8]) -> usize {
        let offset = self.bytes.len();
        let padding = body.len().next_multiple_of(4) - body.len();
        self.bytes.extend(u32::try_from(body.len() + padding).unwrap().to_le_bytes());
        self.bytes.extend(body);
        self.bytes.extend(vec![0; padding]);
        offset
    }
}

/// Builder for an ELF file.
pub(super) struct TestElf {
    pub(super) code_bytes: u64,
    pub(super) eh_frame: Frames,
    pub(super) debug_frame: Option<Frames>,
    pub(super) section_headers: bool,
}

impl TestElf {
    pub(super) fn new(code_bytes: u64, eh_frame: Frames) -> Self {
        Self { code_bytes, eh_frame, debug_frame: None, section_headers: true }
    }

    pub(super) fn build(&self) -> Vec<u8> {
        let frames = self.frames();
        let frames_at = HEADERS_BYTES + self.code_bytes;
        let debug_frame =
            self.debug_frame.as_ref().map(|frames| compressed(&frames.bytes)).unwrap_or_default();
        let debug_frame_at = frames_at + frames.len() as u64;
        let names = b"\0.eh_frame\0.debug_frame\0";
        let names_at = debug_frame_at + debug_frame.len() as u64;
        let sections_at = names_at + names.len() as u64;
        let (shoff, shnum, shstrndx) = if self.section_headers { (sections_at, 4, 3) } else { (0, 0, 0) };

        let mut file = Vec::new();
        file.extend(*b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
        halves(&mut file, &[3, 62, 1, 0]); // ET_DYN, EM_X86_64, version
        words(&mut file, &[0, 64, shoff]); // entry, program headers, section headers
        halves(&mut file, &[0, 0, 64, 56, 3, 64, shnum, shstrndx]);
        segment(&mut file, [1, 5], [HEADERS_BYTES, CODE_ADDRESS, self.code_bytes]);
        segment(&mut file, [1, 4], [frames_at, FRAMES_ADDRESS, frames.len() as u64]);
        segment(&mut file, [0x6474_e550, 4], [frames_at, FRAMES_ADDRESS, FRAME_HEADER_BYTES]);
        file.resize(usize::try_from(frames_at).unwrap(), 0xcc);
        file.extend(&frames);
        file.extend(&debug_frame);
        file.extend(names);
        let eh_frame = [FRAME_HEADER_BYTES + FRAMES_ADDRESS, FRAME_HEADER_BYTES + frames_at];
        section(&mut file, [0, 0, 0], [0, 0, 0]);
        section(&mut file, [1, 1, 2], [eh_frame[0], eh_frame[1], frames.len() as u64 - FRAME_HEADER_BYTES]);
        section(&mut file, [11, 1, 0x800], [0, debug_frame_at, debug_frame.len() as u64]);
        section(&mut file, [0, 3, 0], [0, names_at, names.len() as u64]);
        file
    }

    /// `.eh_frame_hdr`, which only points to `.eh_frame`; the entries; their terminator.
    fn frames(&self) -> Vec<u8> {
        let mut frames = vec![1, 0x1b, 0xff, 0xff]; // version; relative pointer of 4 bytes; no table
        frames.extend(4_u32.to_le_bytes());
        frames.extend(&self.eh_frame.bytes);
        frames.extend([0; 4]);
        frames
    }
}

/// A section's content under `SHF_COMPRESSED`.
fn compressed(content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    halves(&mut bytes, &[1, 0, 0, 0]); // ELFCOMPRESS_ZLIB
    words(&mut bytes, &[content.len() as u64, 1]);
    let mut encoder = ZlibEncoder::new(bytes, Compression::default());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn segment(file: &mut Vec<u8>, [kind, flags]: [u32; 2], [offset, address, size]: [u64; 3]) {
    file.extend([kind, flags].into_iter().flat_map(u32::to_le_bytes));
    words(file, &[offset, address, address, size, size, 1]);
}

fn section(file: &mut Vec<u8>, [name, kind, flags]: [u32; 3], [address, offset, size]: [u64; 3]) {
    file.extend([name, kind].into_iter().flat_map(u32::to_le_bytes));
    words(file, &[u64::from(flags), address, offset, size, 0, 1, 0]);
}

fn halves(file: &mut Vec<u8>, values: &[u16]) {
    file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}

fn words(file: &mut Vec<u8>, values: &[u64]) {
    file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}
