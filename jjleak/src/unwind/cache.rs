//! Keeps compiled rows on disk, a file per module.
//!
//! | bytes | content, little-endian |
//! |---|---|
//! | 0..8 | [`MAGIC`] |
//! | 8..12 | CRC-32 of all that follows |
//! | 12..16 | [`VERSION`] |
//! | 16..20 | checksum of the call frame information that the rows were compiled from |
//! | 20..24 | number of rows |
//! | 24..32 | start of the text |
//! | 32..76 | [`Statistics`] |
//! | 76.. | the rows |

use std::{
    fs::{DirBuilder, File, OpenOptions, Permissions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::PathBuf,
};

use jjleak_common::unwind::Row;
use nix::{fcntl::OFlag, unistd::Uid};
use object::ReadRef;
use tempfile::Builder;

use super::{Error, MAX_ROWS, ModuleRows, Statistics, Unsupported, sections::CallFrames};

const MAGIC: [u8; 8] = *b"jjleakuw";

/// Changes with everything that changes the content: this layout, [`Row`]'s, and how rows are compiled.
const VERSION: u32 = 3;

/// Where the checksum begins, and where what it covers begins.
const CHECKSUM_AT: usize = MAGIC.len();
const COVERED_AT: usize = CHECKSUM_AT + size_of::<u32>();

const STATISTICS_WORDS: usize = 4 + Unsupported::ALL.len();
const HEADER_BYTES: usize = COVERED_AT + 3 * size_of::<u32>() + size_of::<u64>() + 4 * STATISTICS_WORDS;
const MAX_FILE_BYTES: usize = HEADER_BYTES + MAX_ROWS * size_of::<Row>();

/// Longest build ID that is a file name here, in hex digits; the usual ones have 16 to 40.
const MAX_BUILD_ID_DIGITS: usize = 128;

/// Rows tell nothing that the module does not, and other users may read them; none of them may write.
const FILE_MODE: u32 = 0o644;
const FOLDER_MODE: u32 = 0o755;
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Compiled rows on disk, found by build ID.
///
/// The folder makes things faster, never different: a file in it that is damaged, was made from other call frame
/// information or by another version, or could have been written by another user, is compiled anew and replaced.
#[derive(Debug, Clone)]
pub struct RowCache {
    folder: PathBuf,
}

/// Why a file of the cache is not used.
#[derive(Debug, thiserror::Error)]
enum Rejection {
    #[error("cannot read it")]
    Read(#[from] io::Error),
    #[error("another user could have written it")]
    Untrusted,
    #[error("it was made from other call frame information or by another version")]
    Foreign,
    #[error("it is damaged")]
    Damaged,
}

impl RowCache {
    /// A cache in this folder, which is created when there is something to keep.
    #[must_use]
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// The rows of a module, compiled unless they are known. `build_id` is in hex; a module without one is not cached.
    pub fn rows<'data>(&self, build_id: &str, elf: impl ReadRef<'data>) -> Result<ModuleRows, Error> {
        let frames = CallFrames::locate(elf)?;
        let Some(path) = self.path(build_id) else {
            return frames.compile();
        };
        let source = frames.checksum();
        match load(&path, source) {
            Ok(rows) => return Ok(rows),
            Err(Rejection::Read(error)) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::debug!(path = %path.display(), error, "compiling unwind rows anew");
            }
        }
        let rows = frames.compile()?;
        if let Err(error) = self.keep(&path, &encode(&rows, source)) {
            tracing::debug!(path = %path.display(), %error, "cannot keep unwind rows");
        }
        Ok(rows)
    }

    /// Build IDs come from files that are not trusted; only hex digits make a name.
    fn path(&self, build_id: &str) -> Option<PathBuf> {
        let valid = (1..=MAX_BUILD_ID_DIGITS).contains(&build_id.len())
            && build_id.bytes().all(|byte| byte.is_ascii_hexdigit());
        valid.then(|| self.folder.join(format!("{build_id}.v{VERSION}")))
    }

    /// Not synced: a file that a crash cut short is compiled anew.
    fn keep(&self, path: &PathBuf, content: &[u8]) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(&self.folder)?;
        let permissions = Permissions::from_mode(FILE_MODE);
        let mut file = Builder::new().prefix(".rows-").permissions(permissions).tempfile_in(&self.folder)?;
        file.write_all(content)?;
        file.persist(path)?;
        Ok(())
    }
}

fn load(path: &PathBuf, source: u32) -> Result<ModuleRows, Rejection> {
    // Without the flags a link could lead elsewhere, and opening a pipe would wait for its writer.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    check_owner(&file)?;
    let mut content = Vec::new();
    file.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut content)?;
    decode(&content, source)
}

fn check_owner(file: &File) -> Result<(), Rejection> {
    let metadata = file.metadata()?;
    let ours = metadata.uid() == Uid::effective().as_raw() || metadata.uid() == 0;
    let trusted = metadata.is_file() && ours && metadata.mode() & WRITABLE_BY_OTHERS == 0;
    if trusted { Ok(()) } else { Err(Rejection::Untrusted) }
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

/// What is left of the file.
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
