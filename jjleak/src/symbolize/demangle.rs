//! Demangling of symbols.
//!
//! Only names with the prefix of a mangling scheme are demangled: the Itanium C++ ABI (5.1.2) starts an encoding with `_Z`,
//! Rust's legacy scheme is a subset of it, and Rust's own (RFC 2603) starts with `_R`. Demanglers also accept fragments: they
//! read `h` as `unsigned char`, and the name of a C function `h` would be lost.

use std::borrow::Cow;
use std::fmt::{self, Write};

use cpp_demangle::{DemangleOptions, Symbol};

/// Prefixes of mangled names: functions, and constructors of a file's variables (GCC).
const PREFIXES: [&str; 5] = ["_Z", "__Z", "_R", "__R", "_GLOBAL_"];
/// Maximum length of a demangled name. A short name in a hostile file can expand without end; names of C++ templates have some
/// thousands of bytes.
const MAX_BYTES: usize = 64 << 10;

/// The demangled name, or the name itself if it is not mangled.
pub(super) fn demangled(name: &str) -> Cow<'_, str> {
    if !PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
        return Cow::Borrowed(name);
    }
    rust(name).or_else(|| cplusplus(name)).map_or(Cow::Borrowed(name), Cow::Owned)
}

/// Demangles a Rust name, without its hash.
fn rust(name: &str) -> Option<String> {
    let name = rustc_demangle::try_demangle(name).ok()?;
    let mut written = Bounded(String::new());
    write!(written, "{name:#}").ok()?;
    Some(written.0)
}

fn cplusplus(name: &str) -> Option<String> {
    let symbol = Symbol::new(name).ok()?;
    let mut written = Bounded(String::new());
    symbol.structured_demangle(&mut written, &DemangleOptions::default()).ok()?;
    Some(written.0)
}

/// A string of at most [`MAX_BYTES`].
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        if self.0.len() + part.len() > MAX_BYTES {
            return Err(fmt::Error);
        }
        self.0.push_str(part);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_not_mangled_stay() {
        // A C++ demangler reads all but the last six as a type, an operator or a number.
        for name in [
            "h",
            "f",
            "v",
            "i",
            "d",
            "z",
            "Dn",
            "eq",
            "nw",
            "3foo",
            "St",
            "main",
            "_start",
            "__restore_rt",
            "malloc",
            "R",
            "ZN3foo3barEv",
            "RNvC6_123foo3bar",
            "",
        ] {
            assert_eq!(demangled(name), name);
        }
    }

    #[test]
    fn names_that_only_begin_as_mangled_ones_stay() {
        for name in [
            "_Z",
            "_R",
            "__Z",
            "__R",
            "_Zfoo",
            "_Znothing",
            "_Rfoo",
            "_RUN",
            "__Reset",
            "_ZEND",
            "_GLOBAL_TABLE",
        ] {
            assert_eq!(demangled(name), name);
        }
    }

    #[test]
    fn mangled_names_are_as_they_were_written() {
        for (mangled, written) in [
            ("_ZN3foo3barEv", "foo::bar()"),
            ("__ZN3foo3barEv", "foo::bar()"),
            ("_Znwm", "operator new(unsigned long)"),
            ("_ZN3foo3barEv.cold", "foo::bar() [clone .cold]"),
            ("_ZN3foo3barEv.part.0", "foo::bar() [clone .part.0]"),
            ("_ZL6helperi.constprop.0", "helper(int) [clone .constprop.0]"),
            (
                "_ZNSt6vectorIiSaIiEE9push_backERKi",
                "std::vector<int, std::allocator<int> >::push_back(int const&)",
            ),
        ] {
            assert_eq!(demangled(mangled), written, "{mangled}");
        }
    }

    #[test]
    fn rust_names_lose_their_hash() {
        for (mangled, written) in [
            ("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE", "core::fmt::Write::write_fmt"),
            ("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE.llvm.123", "core::fmt::Write::write_fmt"),
            ("_RNvCs1234_7mycrate3foo", "mycrate::foo"),
            ("_RNvCs1234_7mycrate3foo.llvm.9D1C9369", "mycrate::foo"),
        ] {
            assert_eq!(demangled(mangled), written, "{mangled}");
        }
    }

    #[test]
    fn a_short_name_that_expands_without_end_stays_as_it_is() {
        // Each parameter is a pair of the previous one: 2^40 names.
        let mut name = "_Z1f1PIiiE".to_owned();
        for index in 0..40u32 {
            let digit = char::from_digit(index, 36).unwrap_or('Z').to_ascii_uppercase();
            let _ = write!(name, "S_IS{digit}_S{digit}_E");
        }
        assert_eq!(demangled(&name), name);
    }
}
