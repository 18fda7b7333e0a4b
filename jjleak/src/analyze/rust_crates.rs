//! Crates of Rust functions, as their symbols and source files tell.

use super::begins_with;

/// Crates of the standard library, as beginnings of paths.
const STANDARD: [&str; 3] = ["core::", "alloc::", "std::"];

/// Traits of the standard library that it implements for all types.
const FOR_ALL_TYPES: [&str; 3] =
    ["alloc::string::ToString", "alloc::borrow::ToOwned", "core::convert::Into<"];

/// A path in the crate that defines the function: its own, or one of the type and the trait that it is implemented for, as in
/// `<alloc::vec::Vec<u8> as app::Cache>::take`. An implementation is in the crate of its type or of its trait.
pub(super) fn defining_path(symbol: &str) -> &str {
    let Some((implementor, implemented)) = implementation(symbol) else { return symbol };
    match (path(implementor), implemented.map(path)) {
        (Some(of_type), None) => of_type,
        (Some(of_type), Some(Some(of_trait)))
            if !begins_with(of_type, &STANDARD) && !begins_with(of_trait, &FOR_ALL_TYPES) =>
        {
            of_type
        }
        (_, Some(Some(of_trait))) => of_trait,
        // Functions of a type without a path, as in `<[u8]>::to_vec`, and of a trait that is declared in one.
        (None, None) | (_, Some(None)) => STANDARD[0],
    }
}

/// The type, and the trait if there is one, at the beginning of a symbol.
fn implementation(symbol: &str) -> Option<(&str, Option<&str>)> {
    let whole = symbol.strip_prefix('<')?;
    let (mut depth, mut implemented) = (0_u32, None);
    let mut before = 0;
    for (index, byte) in whole.bytes().enumerate() {
        match byte {
            b'<' | b'(' | b'[' => depth += 1,
            b'>' if before == b'-' => {}
            b'>' if depth == 0 => {
                let (start, end) = implemented.unwrap_or((index, index));
                return Some((&whole[..start], implemented.map(|_| &whole[end..index])));
            }
            b'>' | b')' | b']' => depth = depth.saturating_sub(1),
            b' ' if depth == 0 && whole[index..].starts_with(" as ") => {
                implemented = Some((index, index + " as ".len()));
            }
            _ => {}
        }
        before = byte;
    }
    None
}

/// The path of a type or trait; `None` if it has none, as `u8`, `[T]`, and `T`.
fn path(mut name: &str) -> Option<&str> {
    while let Some(rest) =
        ["&", "mut ", "dyn ", "*const ", "*mut "].iter().find_map(|part| name.strip_prefix(part))
    {
        name = rest;
    }
    let end = name.find(['<', '[', '(', ' ']).unwrap_or(name.len());
    name[..end].contains("::").then_some(name)
}

/// The file's path in the sources of the standard library, as in `core/src/fmt/mod.rs`; `None` for other files. Sources are in
/// `/rustc/COMMIT/library`, `rustlib/src/rust/library`, or a distribution's `rustc-VERSION/library`.
pub(super) fn standard_source(file: &str) -> Option<&str> {
    let (sources, path) = file.split_once("/library/")?;
    let folder = sources.rsplit('/').next().unwrap_or_default();
    (sources.contains("/rustc") || folder.starts_with("rust")).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_implementation_is_in_the_crate_of_its_type_or_its_trait() {
        for (symbol, beginning) in [
            ("app::cache::keep", "app::"),
            ("void std::vector<int>::push_back(int&&)", "void std::"),
            ("<app::Session>::new", "app::"),
            ("<app::Session as core::clone::Clone>::clone", "app::"),
            ("<&app::Session as core::iter::IntoIterator>::into_iter", "app::"),
            ("<alloc::vec::Vec<app::Session> as app::Cache>::keep", "app::"),
            ("<alloc::vec::Vec<app::Session>>::push", "alloc::"),
            ("<app::Session as alloc::string::ToString>::to_string", "alloc::"),
            ("<T as alloc::slice::<impl [T]>::to_vec_in::ConvertVec>::to_vec", "alloc::"),
            ("<u64 as alloc::string::SpecToString>::spec_to_string", "alloc::"),
            ("<&mut F as core::ops::function::FnOnce<(A,)>>::call_once", "core::"),
            ("<[app::Session]>::to_vec", "core::"),
            ("<app::Session as <[_]>::to_vec_in::ConvertVec>::to_vec::<alloc::alloc::Global>", "core::"),
            ("<alloc::boxed::Box<dyn Fn(u8) -> u8> as app::Cache>::keep", "app::"),
            ("<fn(u8) -> u8 as app::Cache>::keep", "app::"),
            ("<tokio::task::Id as core::fmt::Display>::fmt", "tokio::"),
            ("<unbalanced", "<unbalanced"),
            ("", ""),
        ] {
            assert!(defining_path(symbol).starts_with(beginning), "{symbol}: {}", defining_path(symbol));
        }
    }

    #[test]
    fn sources_of_the_standard_library_are_told_from_the_programs() {
        for sources in [
            "/rustc/59807616e1fa2540724bfbac14d7976d7e4a3860",
            "/root/.rustup/toolchains/stable/lib/rustlib/src/rust",
            "/usr/src/rustc-1.63.0",
        ] {
            assert_eq!(
                standard_source(&format!("{sources}/library/std/src/fs.rs")),
                Some("std/src/fs.rs"),
                "{sources}"
            );
        }
        for file in ["/home/dev/shelf/library/core/src/lib.rs", "src/main.rs", ""] {
            assert_eq!(standard_source(file), None, "{file}");
        }
    }
}
