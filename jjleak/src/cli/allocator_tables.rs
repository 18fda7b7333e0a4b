//! Selection of allocators by the arguments.

use std::fs;
use std::path::Path;

use super::Failure;
use super::args::Args;
use super::failure::USAGE;
use crate::allocators::{CallFollowing, NamedAllocator};
use crate::profile::SourceKind;
use crate::session::{AllocatorChoice, Probed};

/// Maximum size of an allocator table; a function takes about 80 bytes.
const MAX_TABLE_BYTES: u64 = 1 << 20;

/// The allocators that the arguments name.
pub(super) fn choice(args: &Args) -> Result<AllocatorChoice, Failure> {
    let mut named = Vec::new();
    for path in &args.allocators {
        named.extend(read_table(path)?);
    }
    if let Some(prefix) = &args.symbols_prefix {
        named.push(NamedAllocator::with_prefix(prefix, args.obj.clone()));
    }
    let following = if args.entry_and_return { CallFollowing::EntryAndReturn } else { CallFollowing::Inside };
    let probed = match args.source {
        SourceKind::Growth => Probed::Nothing,
        SourceKind::JavaHeap => Probed::JavaHeap,
        SourceKind::Sampled => Probed::Samples,
        SourceKind::Malloc | SourceKind::File => Probed::Allocators,
    };
    Ok(AllocatorChoice { probed, only: args.obj.clone(), named, following })
}

fn read_table(path: &Path) -> Result<Vec<NamedAllocator>, Failure> {
    let shown = path.display();
    let usage = |what: String, remedy: &str| Failure::new(USAGE, what, remedy);
    let unreadable = |error: std::io::Error| {
        usage(format!("--allocators: cannot read {shown}: {error}"), "name a readable TOML file")
    };
    let length = fs::metadata(path).map_err(unreadable)?.len();
    if length > MAX_TABLE_BYTES {
        let what = format!("--allocators: {shown} has {length} bytes; a table has at most {MAX_TABLE_BYTES}");
        return Err(usage(what, "name a TOML file"));
    }
    let text = fs::read_to_string(path).map_err(unreadable)?;
    NamedAllocator::parse_table(&text).map_err(|error| {
        usage(
            format!("--allocators: {shown}: {error}"),
            "correct the table as docs/allocators.md describes it",
        )
    })
}
