//! Symbols of native code, read by a child process without privileges.
//!
//! Files of a target are hostile input for parsers of debug information: they can make them allocate or run without end, and a file
//! that is truncated while it is mapped ends the process. jjleak opens a file and its separate debug files, and sends the
//! descriptors to the child (`serve`), which can only read them (`sandbox`). If the child ends, jjleak loses the symbols of the
//! file that it had asked for, and starts another child (`client`).

mod client;
mod debug_info;
mod files;
mod mapped_pages;
pub mod protocol;
mod sandbox;
mod serve;

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use client::Client;
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
    is_lost: bool,
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

    /// Returns true if the symbols of a file could not be read.
    pub(super) fn has_lost(&self, file: FileVersion) -> bool {
        self.files.get(&file).is_some_and(|file| file.is_lost)
    }

    /// Asks for symbols of places, [`MAX_PLACES`] at most, without waiting for them. Returns false if they cannot be had, or not
    /// without waiting. Until [`Self::wait`] has returned them, nothing else can be asked for.
    pub(super) fn begin(&mut self, module: &Module, places: Vec<Place>) -> bool {
        let Some(file) = self.file(module) else { return false };
        let Backend::Child(client) = &mut self.backend else { return false };
        let begun = client.begin(file, || module.symbol_files(), &Request::Symbols(file, places));
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

    fn ask(&mut self, module: &Module, request: impl FnOnce(FileNumber) -> Request) -> Option<Reply> {
        let file = self.file(module)?;
        let request = request(file);
        match &mut self.backend {
            Backend::InProcess(files) => in_process(files, module, file, &request),
            Backend::Child(client) => {
                let reply = client.ask(file, || module.symbol_files(), &request);
                self.note_last(module, reply)
            }
        }
    }

    /// The number of a file, unless it is lost.
    fn file(&mut self, module: &Module) -> Option<FileNumber> {
        let number = FileNumber(u32::try_from(self.files.len()).ok()?);
        let is_lost = self.is_unable;
        let file = self.files.entry(module.version).or_insert(File { number, is_lost });
        (!file.is_lost).then_some(file.number)
    }

    /// Like [`Self::note_last`], for a request that is repeated if the file may have nothing to do with the failure.
    fn note<T>(&mut self, module: &Module, outcome: Result<T, client::Error>) -> Option<T> {
        match outcome {
            Err(error) if error.may_be_of_others() => None,
            outcome => self.note_last(module, outcome),
        }
    }

    /// The outcome of a request, after whose failure the file is not asked for again.
    fn note_last<T>(&mut self, module: &Module, outcome: Result<T, client::Error>) -> Option<T> {
        outcome
            .map_err(|error| {
                if let Some(file) = self.files.get_mut(&module.version) {
                    file.is_lost = true;
                }
                self.warn(module, &error);
            })
            .ok()
    }

    fn warn(&mut self, module: &Module, error: &client::Error) {
        if let client::Error::Start(_) = error {
            self.is_unable = true;
            tracing::warn!("native frames have no names: the process that reads symbols {error}");
            return;
        }
        let path = module.path.display();
        let lost = self.files.values().filter(|file| file.is_lost).count();
        if lost <= MAX_NAMED {
            tracing::warn!("frames in {path} have no names: the process that reads its symbols {error}");
        } else {
            tracing::debug!("frames in {path} have no names: the process that reads its symbols {error}");
        }
    }
}

fn in_process(files: &mut Files, module: &Module, number: FileNumber, request: &Request) -> Option<Reply> {
    if !files.has(number) {
        let SymbolFiles { file, debug_file, supplement } = module.symbol_files().ok()?;
        let parts = Parts {
            file: file.into(),
            debug_file: debug_file.map(Into::into),
            supplement: supplement.map(Into::into),
        };
        files.open(number, parts);
    }
    files.reply(request)
}
