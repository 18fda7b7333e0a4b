//! Recordings of Java Flight Recorder (JFR), by a JDK or by async-profiler.
//!
//! A recording is a series of chunks, each with its events, a description of their types, and pools of what they refer to: "JDK Flight
//! Recorder File Format" (Gunnar Morling, <https://www.morling.dev/blog/jdk-flight-recorder-file-format/>),
//! `jdk.jfr.internal.consumer` in the JDK, and `one.jfr.JfrReader` in async-profiler, which describes the events of its own.

mod cursor;
mod events;
mod pools;
mod types;

use std::io::{BufRead, Read};

use super::Error;
use super::named::NamedFile;
use cursor::{Cursor, Damaged};
pub use events::JfrEvents;
use events::{OfChunk, Recorded};
use pools::Pools;
use types::Types;

const MAGIC: &[u8] = b"FLR\0";
/// Bytes of the header of a chunk.
const HEADER_BYTES: usize = 68;
/// Maximum size of a chunk. Recorders begin another one after 12 MB (JDK) or 100 MB (async-profiler).
const MAX_CHUNK_BYTES: u64 = 256 << 20;
/// Types of events that describe others.
const DESCRIPTION: u64 = 0;
const POOLS: u64 = 1;

/// Returns true if a file begins with the header of a chunk.
pub(super) fn is_recording(begin: &[u8]) -> bool {
    begin.starts_with(MAGIC)
}

/// Reads a recording. A chunk that is damaged is left out from there on, and counted.
pub(super) fn read(mut file: impl BufRead) -> Result<NamedFile, Error> {
    let mut recorded = Recorded::default();
    let mut chunk = Vec::new();
    for number in 1.. {
        chunk.clear();
        file.by_ref().take(HEADER_BYTES as u64).read_to_end(&mut chunk)?;
        if chunk.is_empty() {
            break;
        }
        let size = size(&chunk)?;
        let rest = size.saturating_sub(HEADER_BYTES as u64);
        let read = file.by_ref().take(rest).read_to_end(&mut chunk)? as u64;
        let cut_off = if read < rest { Err("the file ends within the chunk") } else { Ok(()) };
        if let Err(reason) = read_chunk(&chunk, &mut recorded)?.and(cut_off) {
            recorded.damaged(number, reason);
        }
    }
    recorded.finish()
}

/// Size of a chunk, by its header.
fn size(header: &[u8]) -> Result<u64, Error> {
    if !is_recording(header) || header.len() < HEADER_BYTES {
        return Err(Error::Chunk("it has no header"));
    }
    match big_endian(header, 8) {
        // The recorder was killed: its size is not there yet.
        Some(0) | None => Err(Error::Chunk("it was not finished; \"jfr assemble\" repairs files of the JDK")),
        Some(size) if size > MAX_CHUNK_BYTES => Err(Error::Chunk("it has more than 256 MiB")),
        Some(size) => Ok(size),
    }
}

fn big_endian(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn read_chunk(chunk: &[u8], recorded: &mut Recorded) -> Result<Result<(), Damaged>, Error> {
    let at = big_endian(chunk, 24).and_then(|at| usize::try_from(at).ok());
    let Some(description) = at.and_then(|at| chunk.get(at..)) else {
        return Ok(Err("the description of its types is not there"));
    };
    let types = match Types::read(description) {
        Ok(types) => types,
        Err(reason) => return Ok(Err(reason)),
    };
    let (mut pools, mut budget) = (Pools::default(), chunk.len().saturating_mul(2));
    // Pools come after the events that refer to them.
    let whole = each_event(
        chunk,
        |kind, event| {
            if kind == POOLS { pools.add(event, &types, &mut budget) } else { Ok(()) }
        },
    );
    let mut of_chunk = OfChunk::default();
    let mut failed = None;
    let read = each_event(chunk, |kind, event| {
        if kind != DESCRIPTION
            && kind != POOLS
            && failed.is_none()
            && let Some(event) = events::read(event, kind, &types, &mut budget)?
        {
            failed = recorded.add(event, &pools, &mut of_chunk).err();
        }
        Ok(())
    });
    failed.map_or(Ok(read.and(whole)), Err)
}

/// Calls `with` with the type of each event and its bytes.
fn each_event(chunk: &[u8], mut with: impl FnMut(u64, &[u8]) -> Result<(), Damaged>) -> Result<(), Damaged> {
    let mut rest = chunk.get(HEADER_BYTES..).unwrap_or_default();
    while !rest.is_empty() {
        let mut cursor = Cursor::new(rest);
        let size = usize::try_from(cursor.number()?).unwrap_or(usize::MAX);
        let kind = cursor.number()?;
        let (event, after) = rest
            .split_at_checked(size)
            .filter(|(event, _)| !event.is_empty())
            .ok_or("an event has no end")?;
        with(kind, event)?;
        rest = after;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
