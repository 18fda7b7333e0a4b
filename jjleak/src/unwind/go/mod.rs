//! Rows of Go's functions, from the tables in every Go program, stripped or not, for its own tracebacks (`.gopclntab`).
//!
//! - `image`: the module's memory as it will be loaded.
//! - `table`: functions, and the stack pointer's distance from the return address at each instruction (`pcsp`).
//! - `names`: names of functions.
//! - `switch`: functions of the runtime that switch stacks, from their code.
//! - `crosscall`: the C function that starts a thread's Go code.
//!
//! Supports tables of Go 1.18 and later. The address of the code comes from the runtime's own description of the module
//! (`runtime.firstmoduledata`), which must agree with the table in six places.

mod crosscall;
mod image;
mod names;
mod switch;
mod table;

pub(super) use image::Image;
pub use names::GoNames;
pub(super) use table::is_table;

use jjleak_common::unwind::{Row, RowKind, SavedFp, ToRunning};

use self::table::{Function, Table};
use super::{
    Error, MAX_ROWS,
    assemble::push,
    entries::{Entries, Span},
};

/// Bytes of a word on the stack.
const WORD: u64 = 8;

/// Outermost frames of goroutines and of the program.
const ROOTS: [&[u8]; 2] = [b"runtime.goexit", b"runtime.rt0_go"];
/// Functions at which Go's own tracebacks end, too, but which have callers: the kernel calls signal handlers, and C code starts
/// the threads of a program with cgo (`crosscall1`).
const CALLED: [&[u8]; 2] = [b"runtime.sigtramp", b"runtime.mstart"];

/// The Go code of a module.
pub(super) struct GoCode<'data> {
    image: Image<'data>,
    table: Table<'data>,
}

impl<'data> GoCode<'data> {
    /// The code of the first of these tables that matches the module's description of itself; `None` if there is none of a known
    /// version.
    pub(super) fn locate(image: Image<'data>, tables: &[(u64, &'data [u8])]) -> Option<Self> {
        let mut known = tables.iter().filter_map(|(address, bytes)| Table::parse(bytes, *address));
        let table = known.find_map(|table| table.placed_by(&image))?;
        Some(Self { image, table })
    }

    /// Adds the source of the rows to a checksum.
    pub(super) fn update(&self, hasher: &mut crc32fast::Hasher) {
        hasher.update(&self.table.text().to_le_bytes());
        hasher.update(self.table.bytes());
        for function in self.table.functions().filter(|it| switch::is_special(it.name)) {
            hasher.update(self.code(&function));
        }
        hasher.update(&self.image.find_code(crosscall::CODE).unwrap_or_default().to_le_bytes());
    }

    fn to_running(&self) -> Option<ToRunning> {
        let mut systemstack = self.table.functions().filter(|it| it.name == switch::SYSTEMSTACK);
        systemstack.find_map(|it| switch::to_running(self.code(&it), &it, &self.table))
    }

    fn code(&self, function: &Function<'_>) -> &'data [u8] {
        self.image.bytes(function.addresses.start, function.addresses.end - function.addresses.start)
    }
}

impl Entries<'_> {
    /// Adds the functions of Go.
    pub(super) fn read_go(&mut self, go: &GoCode<'_>) -> Result<(), Error> {
        let mut special_left = switch::MAX_SPECIAL;
        let running = go.to_running();
        for function in go.table.functions() {
            let size = function.addresses.end - function.addresses.start;
            let Some(addresses) = self.text.relative(function.addresses.start, size) else {
                self.statistics.outside += 1;
                continue;
            };
            if addresses.is_empty() {
                continue;
            }
            let first = self.rows.len();
            self.add_function(go, &function, addresses.start, running.as_ref(), &mut special_left);
            if self.rows.len() == first {
                continue;
            }
            if self.rows.len() > MAX_ROWS {
                return Err(Error::TooManyRows);
            }
            self.statistics.entries += 1;
            self.spans.push(Span::new(addresses, first..self.rows.len()));
        }
        self.add_crosscall(go);
        Ok(())
    }

    /// Adds the function that starts Go code in threads made by C code, if the program uses cgo.
    fn add_crosscall(&mut self, go: &GoCode<'_>) {
        let begin = go.image.find_code(crosscall::CODE);
        let addresses = begin.and_then(|it| self.text.relative(it, crosscall::CODE.len() as u64));
        let Some(addresses) = addresses.filter(|it| !it.is_empty()) else { return };
        let first = self.rows.len();
        self.rows.extend(crosscall::rows(addresses.start));
        self.statistics.entries += 1;
        self.spans.push(Span::new(addresses, first..self.rows.len()));
    }

    /// Adds the rows of a function at `begin`; none for C code, which Go's linker lists without a table.
    fn add_function(
        &mut self,
        go: &GoCode<'_>,
        function: &Function<'_>,
        begin: u32,
        running: Option<&ToRunning>,
        special_left: &mut usize,
    ) {
        let first = self.rows.len();
        if function.is_top_frame() && ROOTS.contains(&function.name) {
            self.rows.push(Row::plain(begin, RowKind::End));
            return;
        }
        let relative = |address: u64| begin + u32::try_from(address - function.addresses.start).unwrap_or(0);
        if switch::is_special(function.name) && *special_left > 0 {
            *special_left -= 1;
            for (address, row) in switch::rows(go.code(function), function, &go.table, running) {
                push(&mut self.rows, first, row.at(relative(address)));
            }
            return;
        }
        let is_unknown_root = function.is_top_frame() && !CALLED.contains(&function.name);
        let is_insufficient = function.writes_stack_pointer() || switch::is_special(function.name);
        if is_insufficient || is_unknown_root {
            self.rows.push(Row::plain(begin, RowKind::Unsupported));
            return;
        }
        for (address, depth) in go.table.depths(function) {
            push(&mut self.rows, first, sp_row(depth).at(relative(address)));
            // The caller refuses the module.
            if self.rows.len() > MAX_ROWS {
                return;
            }
        }
    }
}

/// The row for a stack pointer this many bytes below the return address.
fn sp_row(depth: i64) -> Row {
    let words =
        u64::try_from(depth).ok().filter(|depth| depth.is_multiple_of(WORD)).map(|depth| depth / WORD + 1);
    let row = words.and_then(|words| {
        if words > Row::MAX_OFFSET_WORDS {
            Row::far(0, words, SavedFp::Register, 0)
        } else {
            Row::new(0, RowKind::Sp, words, SavedFp::Register, 0)
        }
    });
    row.unwrap_or(Row::plain(0, RowKind::Unsupported))
}
