//! Symbols of native code, read by a child process without privileges.
//!
//! Files of a target are hostile input for parsers of debug information: they can make them allocate or run without end, and a file
//! that is truncated while it is mapped ends the process. jjleak opens a file and its separate debug files, and sends the
//! descriptors to the child (`serve`), which can only read them (`sandbox`). If the child ends, jjleak starts another one (`client`),
//! and asks again, for what the symbol tables of the file have. If that ends it, too, the file has no names.

mod client;
mod debug_info;
mod files;
mod mapped_pages;
pub mod protocol;
mod sandbox;
mod serve;

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use client::{Client, ToOpen};
use files::{Files, Parts};
use protocol::{FileNumber, MAX_PLACES, Place, Reply, Request, Symbol};

use super::tail_calls::Function;
use crate::processes::{FileVersion, Module, SymbolFiles};

pub use serve::{VERB, run};

/// Path of the program that runs, which becomes the child if its main function calls [`run`].
pub const OWN_PROGRAM: &str = "/proc/self/exe";
/// Maximum number of files that are named in warnings.
const MAX_NAMED: usize = 8;

/// Source of symbols.
pub struct Symbolizer {
    backend: Backend,
    files: HashMap<FileVersion, File>,
    /// True if no child can be started.
    is_unable: bool,
}

enum Backend {
    InProcess(Files),
    Child(Client),
}

#[derive(Debug, Clone, Copy)]
struct File {
    number: FileNumber,
    source: NameSource,
}

/// Parts of a file that names come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NameSource {
    DebugInfo,
    /// The debug information cannot be read.
    SymbolTables,
    /// The symbol tables cannot be read, either.
    Nothing,
}

impl Symbolizer {
    /// Reads symbols in this process: for files that nobody hostile can write to.
    #[must_use]
    pub fn in_process() -> Self {
        Self::with(Backend::InProcess(Files::new("/proc/self/fd")))
    }

    /// Reads symbols in a child, which runs this program. It starts when the first symbol is needed.
    #[must_use]
    pub fn in_child(program: &Path) -> Self {
        Self::with(Backend::Child(Client::new(program)))
    }

    fn with(backend: Backend) -> Self {
        Self { backend, files: HashMap::new(), is_unable: false }
    }

    /// Ends the child, which starts again when another symbol is needed. No request may be waiting for its reply.
    pub(super) fn end_child(&mut self) {
        if let Backend::Child(client) = &mut self.backend {
            client.end();
        }
    }

    /// Symbols of places in a file, in their order.
    pub(super) fn symbols(&mut self, module: &Module, places: &[Place]) -> Vec<Option<Symbol>> {
        let mut symbols = Vec::with_capacity(places.len());
        while symbols.len() < places.len() {
            let next = &places[symbols.len()..];
            let next = &next[..next.len().min(MAX_PLACES)];
            match self.ask(module, |file| Request::Symbols(file, next.to_vec())) {
                Some(Reply::Symbols(some)) if (1..=next.len()).contains(&some.len()) => symbols.extend(some),
                _ => break,
            }
        }
        symbols.resize(places.len(), None);
        symbols
    }

    /// The function of a file with this entry address.
    pub(super) fn function(&mut self, module: &Module, address: u64) -> Option<Function> {
        match self.ask(module, |file| Request::Function(file, address)) {
            Some(Reply::Function(function)) => function,
            _ => None,
        }
    }

    /// Returns true if the symbols of a file could not be read, or not from its debug information.
    pub(super) fn has_lost(&self, file: FileVersion) -> bool {
        self.files.get(&file).is_some_and(|file| file.source != NameSource::DebugInfo)
    }

    /// Asks for symbols of places, [`MAX_PLACES`] at most, without waiting for them. Returns false if they cannot be had, or not
    /// without waiting. Until [`Self::wait`] has returned them, nothing else can be asked for.
    pub(super) fn begin(&mut self, module: &Module, places: Vec<Place>) -> bool {
        let Some(file) = self.file(module) else { return false };
        let Backend::Child(client) = &mut self.backend else { return false };
        let begun = client.begin(file.number, || file.opened(module), &Request::Symbols(file.number, places));
        self.note(module, begun).is_some()
    }

    /// Symbols of the first places that were asked for, all or some, if they come within this time; none if they cannot be had.
    pub(super) fn wait(&mut self, module: &Module, most: Duration) -> Option<Vec<Option<Symbol>>> {
        let Backend::Child(client) = &mut self.backend else { return Some(Vec::new()) };
        let reply = client.wait(most);
        match self.note(module, reply) {
            Some(None) => None,
            Some(Some(Reply::Symbols(symbols))) => Some(symbols),
            _ => Some(Vec::new()),
        }
    }

    fn ask(&mut self, module: &Module, request: impl Fn(FileNumber) -> Request) -> Option<Reply> {
        loop {
            let file = self.file(module)?;
            let request = request(file.number);
            let reply = match &mut self.backend {
                Backend::InProcess(files) => return in_process(files, module, file.number, &request),
                Backend::Child(client) => client.ask(file.number, || file.opened(module), &request),
            };
            match reply {
                Ok(reply) => return Some(reply),
                Err(error) => self.lose(module, &error),
            }
        }
    }

    /// A file that names can come from.
    fn file(&mut self, module: &Module) -> Option<File> {
        let number = FileNumber(u32::try_from(self.files.len()).ok()?);
        let source = if self.is_unable { NameSource::Nothing } else { NameSource::DebugInfo };
        let file = self.files.entry(module.version).or_insert(File { number, source });
        Some(*file).filter(|file| file.source != NameSource::Nothing)
    }

    /// The outcome of a request. One that failed is repeated later, unless the file is lost.
    fn note<T>(&mut self, module: &Module, outcome: Result<T, client::Error>) -> Option<T> {
        outcome
            .map_err(|error| {
                if !error.may_be_of_others() {
                    self.lose(module, &error);
                }
            })
            .ok()
    }

    /// Gives up the part of a file that a request failed for.
    fn lose(&mut self, module: &Module, error: &client::Error) {
        self.is_unable |= matches!(error, client::Error::Start(_));
        let Some(file) = self.files.get_mut(&module.version) else { return };
        file.source = match file.source {
            NameSource::DebugInfo if !self.is_unable => NameSource::SymbolTables,
            _ => NameSource::Nothing,
        };
        if self.is_unable {
            tracing::warn!("native frames have no names: the process that reads symbols {error}");
            return;
        }
        let missing = match file.source {
            NameSource::Nothing => "no names",
            _ => "neither lines nor inlined functions",
        };
        let path = module.path.display();
        let lost = self.files.values().filter(|file| file.source != NameSource::DebugInfo).count();
        if lost <= MAX_NAMED {
            tracing::warn!("frames in {path} have {missing}: the process that reads its symbols {error}");
        } else {
            tracing::debug!("frames in {path} have {missing}: the process that reads its symbols {error}");
        }
    }
}

impl File {
    fn opened(self, module: &Module) -> io::Result<ToOpen> {
        let with_debug_info = self.source == NameSource::DebugInfo;
        module.symbol_files().map(|files| ToOpen { files, with_debug_info })
    }
}

fn in_process(files: &mut Files, module: &Module, number: FileNumber, request: &Request) -> Option<Reply> {
    if !files.has(number) {
        let SymbolFiles { file, debug_file, supplement } = module.symbol_files().ok()?;
        let parts = Parts {
            file: file.into(),
            debug_file: debug_file.map(Into::into),
            supplement: supplement.map(Into::into),
            with_debug_info: true,
        };
        files.open(number, parts);
    }
    files.reply(request)
}
