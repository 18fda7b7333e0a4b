//! Parser of the table of allocators: TOML, described in docs/allocators.md.

use std::ops::Range;
use std::path::PathBuf;

use jjleak_common::cookie::{Arg, ResultIn, Signature};
use serde::Deserialize;
use toml::Spanned;

use super::{NamedAllocator, NamedFunction, Place};
use crate::allocators::site::Role;

/// An error in a table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct TableError {
    /// Line, counted from 1.
    pub line: usize,
    /// Description of the error.
    pub what: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    allocator: Vec<Spanned<AllocatorTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AllocatorTable {
    name: String,
    file: Option<PathBuf>,
    function: Vec<Spanned<FunctionTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FunctionTable {
    name: Option<String>,
    address: Option<u64>,
    role: RoleName,
    size: Option<u8>,
    count: Option<u8>,
    pointer: Option<u8>,
    #[serde(default)]
    result: ResultName,
    #[serde(default)]
    zero_frees: bool,
    #[serde(default)]
    may_throw: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RoleName {
    Allocate,
    Resize,
    Free,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ResultName {
    #[default]
    Return,
    Pointee,
}

pub(super) fn parse(text: &str) -> Result<Vec<NamedAllocator>, TableError> {
    let error_at = |span: Range<usize>, what: String| TableError { line: line_at(text, span.start), what };
    let table: Table = toml::from_str(text)
        .map_err(|error| error_at(error.span().unwrap_or_default(), error.message().trim().to_owned()))?;
    let mut allocators = Vec::new();
    for allocator in table.allocator {
        let span = allocator.span();
        let AllocatorTable { name, file, function: tables } = allocator.into_inner();
        if tables.is_empty() {
            return Err(error_at(span, format!("the allocator {name} has no functions")));
        }
        let mut functions = Vec::new();
        for table in tables {
            let span = table.span();
            functions
                .push(function(table.into_inner(), file.is_some()).map_err(|what| error_at(span, what))?);
        }
        allocators.push(NamedAllocator { name, file, explicit: true, functions });
    }
    Ok(allocators)
}

/// Validates one function; describes the first error.
fn function(table: FunctionTable, has_file: bool) -> Result<NamedFunction, String> {
    let FunctionTable { name, address, role, size, count, pointer, result, zero_frees, may_throw } = table;
    let place = match (name, address) {
        (Some(name), None) => Place::Names(vec![name]),
        (None, Some(address)) if has_file => Place::Address(address),
        (None, Some(_)) => return Err("a function with an address needs the allocator's file".to_owned()),
        _ => return Err("a function needs either a name or an address".to_owned()),
    };
    let needs = |what: &str| Err(format!("{what} must say which argument it is"));
    match role {
        RoleName::Allocate | RoleName::Resize if size.is_none() => return needs("size"),
        RoleName::Resize | RoleName::Free if pointer.is_none() => return needs("pointer"),
        RoleName::Allocate if result == ResultName::Pointee && pointer.is_none() => return needs("pointer"),
        RoleName::Allocate if result == ResultName::Return && pointer.is_some() => {
            return Err("pointer is not used here, unless result is \"pointee\"".to_owned());
        }
        RoleName::Free if size.or(count).is_some() => {
            return Err("a function that frees takes a pointer; omit size and count".to_owned());
        }
        _ => {}
    }
    if result == ResultName::Pointee && role != RoleName::Allocate {
        return Err("result can be \"pointee\" only where role is \"allocate\"".to_owned());
    }
    if zero_frees && role != RoleName::Resize {
        return Err("zero_frees is for role \"resize\" only".to_owned());
    }
    if may_throw && (role != RoleName::Allocate || result == ResultName::Pointee) {
        return Err("may_throw is for role \"allocate\" only, with the block as its result".to_owned());
    }
    let role = match role {
        RoleName::Allocate if may_throw => Role::AllocateOrThrow,
        RoleName::Allocate => Role::Allocate,
        RoleName::Resize => Role::Resize,
        RoleName::Free => Role::Free,
    };
    let result = if result == ResultName::Pointee { ResultIn::Pointee } else { ResultIn::Return };
    let (size, count, pointer) = (argument(size)?, argument(count)?, argument(pointer)?);
    let signature = Signature { size, count, pointer, extra: None, result, zero_frees };
    Ok(NamedFunction { place, role, signature })
}

/// The argument with a number counted from 1.
fn argument(number: Option<u8>) -> Result<Option<Arg>, String> {
    let Some(number) = number else { return Ok(None) };
    let argument = number.checked_sub(1).and_then(Arg::new);
    let last = Arg::COUNT;
    argument
        .map(Some)
        .ok_or_else(|| format!("arguments are counted from 1 to {last}: there is no argument {number}"))
}

/// Line of a byte, counted from 1.
fn line_at(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|&byte| byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use jjleak_common::cookie::{ARG0, ARG1};

    use super::*;

    const POOL: &str = r#"
[[allocator]]
name = "pool"
file = "libpool.so"

[[allocator.function]]
name = "pool_alloc"
role = "allocate"
size = 2

[[allocator.function]]
address = 0x1234
role = "free"
pointer = 1
"#;

    fn error(text: &str) -> (usize, String) {
        let TableError { line, what } = parse(text).unwrap_err();
        (line, what)
    }

    #[test]
    fn a_table_names_functions_and_their_arguments() {
        let [pool] = &parse(POOL).unwrap()[..] else { panic!("not one allocator") };
        let [alloc, free] = &pool.functions[..] else { panic!("not two functions") };

        assert_eq!((pool.name.as_str(), pool.file.as_deref()), ("pool", Some("libpool.so".as_ref())));
        assert_eq!(alloc.place, Place::Names(vec!["pool_alloc".to_owned()]));
        assert_eq!((alloc.role, alloc.signature.size), (Role::Allocate, Some(ARG1)));
        assert_eq!(free.place, Place::Address(0x1234));
        assert_eq!((free.role, free.signature.pointer), (Role::Free, Some(ARG0)));
    }

    #[test]
    fn what_is_wrong_is_reported_with_its_line() {
        let cases = [
            ("[[allocator]", 1, "unclosed"),
            ("", 1, "missing field `allocator`"),
            (&POOL.replace("size = 2", "size = 7"), 6, "arguments are counted from 1 to 6"),
            (&POOL.replace("size = 2", "size = 0"), 6, "arguments are counted from 1 to 6"),
            (&POOL.replace("size = 2", ""), 6, "size must say which argument it is"),
            (&POOL.replace("size = 2", "sice = 2"), 9, "unknown field `sice`"),
            (&POOL.replace("\"allocate\"", "\"get\""), 8, "unknown variant `get`"),
            (&POOL.replace("pointer = 1", ""), 11, "pointer must say which argument it is"),
            (&POOL.replace("file = \"libpool.so\"", ""), 11, "needs the allocator's file"),
            (&POOL.replace("name = \"pool_alloc\"", ""), 6, "a name or an address"),
            (&POOL.replace("size = 2", "size = 2\nzero_frees = true"), 6, "zero_frees is for"),
        ];
        for (text, line, what) in cases {
            let found = error(text);
            assert!(found.0 == line && found.1.contains(what), "{found:?} instead of {line}, {what}");
        }
    }
}
