//! On-disk cache of compiled rows, one file per module.
//!
//! | bytes | content, little-endian |
//! |---|---|
//! | 0..8 | [`MAGIC`] |
//! | 8..12 | CRC-32 of all that follows |
//! | 12..16 | [`VERSION`] |
//! | 16..20 | checksum of the call frame information that the rows were compiled from |
//! | 20..24 | number of rows |
//! | 24..32 | start of the text |
//! | 32..80 | [`Statistics`] |
//! | 80.. | the rows |

use std::io::{self, Read};

use super::{
    Error, MAX_ROWS, ModuleRows, Statistics, Unsupported, VerifiedRows, affordable, sections::CallFrames,
    verify::verify,
};
use crate::cache_folder::CacheFolder;
use crate::file_content::Content;
use jjleak_common::unwind::Row;

const MAGIC: [u8; 8] = *b"jjleakuw";

/// Incremented with every change of the content: this layout, the layout of [`Row`], or the compilation of rows.
const VERSION: u32 = 7;

/// Offset of the checksum, and of the bytes that it covers.
const CHECKSUM_AT: usize = MAGIC.len();
const COVERED_AT: usize = CHECKSUM_AT + size_of::<u32>();

const STATISTICS_WORDS: usize = 4 + Unsupported::ALL.len();
const HEADER_BYTES: usize = COVERED_AT + 3 * size_of::<u32>() + size_of::<u64>() + 4 * STATISTICS_WORDS;
const MAX_FILE_BYTES: usize = HEADER_BYTES + MAX_ROWS * size_of::<Row>();

/// Maximum length of a key that becomes a file name. Usual build IDs have 16 to 40 digits.
const MAX_KEY_CHARACTERS: usize = 128;

/// A cache of compiled rows by the keys of their modules.
///
/// Losing a file affects speed only. A file is recompiled and replaced if it is damaged, was made from other call frame
/// information or by another version, or could have been written by another user.
#[derive(Debug, Clone)]
pub struct RowCache {
    /// `None` compiles every time.
    files: Option<CacheFolder>,
}

/// Reason why a file of the cache is not used.
#[derive(Debug, thiserror::Error)]
enum Rejection {
    #[error("cannot read it")]
    Read(#[from] io::Error),
    #[error("it was made from other call frame information or by another version")]
    Foreign,
    #[error("it is damaged")]
    Damaged,
}

impl RowCache {
    /// A cache in this folder.
    #[must_use]
    pub fn new(files: impl Into<Option<CacheFolder>>) -> Self {
        Self { files: files.into() }
    }

    /// The rows of a module, from the cache or compiled, and compared with its code in either case. A module with an empty key is
    /// not cached.
    pub fn rows<'data>(&self, key: &str, elf: impl Into<Content<'data>>) -> Result<VerifiedRows, Error> {
        let elf = elf.into();
        affordable(elf, self.find(key, elf))
    }

    fn find(&self, key: &str, elf: Content<'_>) -> Result<VerifiedRows, Error> {
        let frames = affordable(elf, CallFrames::locate(elf))?;
        let (Some(name), Some(files)) = (name(key), &self.files) else {
            return verify(frames.compile()?, elf);
        };
        let source = frames.checksum();
        match load(files, &name, source) {
            Ok(rows) => match verify(rows, elf) {
                Ok(rows) => return Ok(rows),
                Err(error) => tracing::debug!(name, %error, "recompiling unwind rows"),
            },
            Err(Rejection::Read(error)) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::debug!(name, error, "recompiling unwind rows");
            }
        }
        let rows = affordable(elf, verify(frames.compile()?, elf))?;
        if let Err(error) = files.write(&name, &encode(rows.rows(), source)) {
            tracing::debug!(name, %error, "cannot cache unwind rows");
        }
        Ok(rows)
    }
}

fn load(files: &CacheFolder, name: &str, source: u32) -> Result<ModuleRows, Rejection> {
    let mut content = Vec::new();
    files.open(name)?.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut content)?;
    decode(&content, source)
}

/// File name for a key. Build IDs come from untrusted files: only hex digits and hyphens are accepted.
fn name(key: &str) -> Option<String> {
    let is_valid = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    let valid = (1..=MAX_KEY_CHARACTERS).contains(&key.len()) && key.bytes().all(is_valid);
    valid.then(|| format!("{key}.v{VERSION}"))
}

fn encode(rows: &ModuleRows, source: u32) -> Vec<u8> {
    let mut content = Vec::with_capacity(HEADER_BYTES + size_of_val(rows.rows()));
    content.extend(MAGIC);
    content.extend([0; COVERED_AT - CHECKSUM_AT]);
    // No more than `MAX_ROWS`.
    let count = u32::try_from(rows.rows().len()).unwrap_or(u32::MAX);
    content.extend([VERSION, source, count].into_iter().flat_map(u32::to_le_bytes));
    content.extend(rows.text_start().to_le_bytes());
    content.extend(statistics_words(rows.statistics()).into_iter().flat_map(u32::to_le_bytes));
    content.extend(rows.rows().iter().flat_map(|row| row.0.to_le_bytes()));
    let checksum = crc32fast::hash(&content[COVERED_AT..]);
    content[CHECKSUM_AT..COVERED_AT].copy_from_slice(&checksum.to_le_bytes());
    content
}

fn decode(content: &[u8], source: u32) -> Result<ModuleRows, Rejection> {
    let mut fields = Fields(content);
    let (magic, checksum) = (fields.take()?, fields.u32()?);
    if magic != MAGIC || checksum != crc32fast::hash(fields.0) {
        return Err(Rejection::Damaged);
    }
    if [fields.u32()?, fields.u32()?] != [VERSION, source] {
        return Err(Rejection::Foreign);
    }
    let count = fields.u32()?;
    let text_start = u64::from_le_bytes(fields.take()?);
    let statistics = statistics(&mut fields)?;
    let (rows, rest) = fields.0.as_chunks();
    if rows.len() != count as usize || !rest.is_empty() {
        return Err(Rejection::Damaged);
    }
    let rows = rows.iter().map(|row| Row(u64::from_le_bytes(*row))).collect();
    ModuleRows::new(text_start, rows, statistics).ok_or(Rejection::Damaged)
}

/// The unread rest of the file.
struct Fields<'content>(&'content [u8]);

impl Fields<'_> {
    fn take<const BYTES: usize>(&mut self) -> Result<[u8; BYTES], Rejection> {
        let (field, rest) = self.0.split_first_chunk().ok_or(Rejection::Damaged)?;
        self.0 = rest;
        Ok(*field)
    }

    fn u32(&mut self) -> Result<u32, Rejection> {
        self.take().map(u32::from_le_bytes)
    }
}

fn statistics_words(statistics: &Statistics) -> [u32; STATISTICS_WORDS] {
    let Statistics { entries, outside, overlapping, malformed, unsupported } = *statistics;
    let mut words = [0; STATISTICS_WORDS];
    words[..4].copy_from_slice(&[entries, outside, overlapping, malformed]);
    words[4..].copy_from_slice(&unsupported);
    words
}

fn statistics(fields: &mut Fields<'_>) -> Result<Statistics, Rejection> {
    let mut statistics = Statistics {
        entries: fields.u32()?,
        outside: fields.u32()?,
        overlapping: fields.u32()?,
        malformed: fields.u32()?,
        ..Statistics::default()
    };
    for count in &mut statistics.unsupported {
        *count = fields.u32()?;
    }
    Ok(statistics)
}

#[cfg(test)]
mod tests;
