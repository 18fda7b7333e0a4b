//! Symbols of many places at once: with a request for each, jjleak and its child would mostly wait for each other. While the target
//! runs, jjleak does not wait at all, and a child can read the debug information of a large file in the meantime.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use jjleak_common::stack::StackFrame;
use jjleak_common::unwind::layer;

use super::{Known, NativeSymbols, Place};
use crate::fast_map::{FastMap, FastSet};
use crate::processes::{Module, ModuleId, ModuleTable};
use crate::snapshot::{FrameKind, RawStack};
use crate::symbolize::GeneratedFrames;
use crate::symbolize::child::protocol::{MAX_PLACES, Symbol};

/// Time that reading ahead takes at once, while other work waits.
const AT_ONCE: Duration = Duration::from_millis(20);
/// Maximum number of places to read ahead; those beyond are read when they are needed.
const MAX_AHEAD: usize = 1 << 17;

/// Places that are read ahead.
#[derive(Default)]
pub(super) struct Ahead {
    waiting: VecDeque<Batch>,
    /// The places that the child has been asked for.
    asked: Option<Batch>,
    /// All of these places.
    places: FastSet<Place>,
}

/// Places of a file.
struct Batch {
    module: Rc<Module>,
    /// With their addresses in the file.
    places: Vec<(Place, u64)>,
}

/// Places of stacks that have no symbols yet.
#[derive(Default)]
struct Unknown {
    /// With their addresses in the file.
    by_module: FastMap<ModuleId, Vec<(Place, u64)>>,
    places: FastSet<Place>,
}

/// A stack, and the names of generated code in it.
pub(in crate::symbolize) type WithGenerated<'stacks> = (&'stacks RawStack, Option<&'stacks GeneratedFrames>);

impl NativeSymbols {
    /// Reads the symbols of all places in stacks of a process.
    pub(in crate::symbolize) fn look_up<'stacks>(
        &mut self,
        stacks: impl Iterator<Item = WithGenerated<'stacks>>,
        modules: &ModuleTable,
    ) {
        self.end_reading_ahead();
        for (module, places) in self.unknown(stacks, modules).by_module {
            let module = modules.get(module);
            let asked: Vec<_> = places.iter().map(|(place, address)| place.at(*address)).collect();
            let symbols = self.symbolizer.symbols(module, &asked);
            self.keep(module, places, symbols);
        }
    }

    /// Ends the child that reads symbols until one is needed again.
    pub(in crate::symbolize) fn end_child(&mut self) {
        self.end_reading_ahead();
        self.symbolizer.end_child();
    }

    /// Reads the symbols of places in stacks of a process later, in [`Self::read_ahead`].
    pub(in crate::symbolize) fn expect<'stacks>(
        &mut self,
        stacks: impl Iterator<Item = WithGenerated<'stacks>>,
        modules: &ModuleTable,
    ) {
        for (module, places) in self.unknown(stacks, modules).by_module {
            let module = modules.share(module);
            for some in places.chunks(MAX_PLACES) {
                let room = MAX_AHEAD.saturating_sub(self.ahead.places.len());
                let new = some.iter().filter(|(place, _)| !self.ahead.places.contains(place)).take(room);
                let batch = Batch { module: Rc::clone(&module), places: new.copied().collect() };
                self.ahead.places.extend(batch.places.iter().map(|(place, _)| *place));
                self.ahead.waiting.push_back(batch);
            }
        }
    }

    /// Reads symbols of expected places for a short while.
    pub(in crate::symbolize) fn read_ahead(&mut self) {
        let end = Instant::now() + AT_ONCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if let Some(asked) = self.ahead.asked.take() {
                let Some(symbols) = self.symbolizer.wait(&asked.module, left) else {
                    self.ahead.asked = Some(asked);
                    return;
                };
                self.take_ahead(asked, symbols);
            }
            if left.is_zero() {
                return;
            }
            let Some(next) = self.ahead.waiting.pop_front() else { return };
            let places = next.places.iter().map(|(place, address)| place.at(*address)).collect();
            if self.symbolizer.begin(&next.module, places) {
                self.ahead.asked = Some(next);
            } else {
                self.ahead.forget(&next.places);
            }
        }
    }

    /// Keeps what the child is about to answer, and drops the rest.
    pub(super) fn end_reading_ahead(&mut self) {
        if let Some(asked) = self.ahead.asked.take() {
            let symbols = self.symbolizer.wait(&asked.module, Duration::MAX).unwrap_or_default();
            self.take_ahead(asked, symbols);
        }
        self.ahead = Ahead::default();
    }

    /// Keeps the symbols of the first places that were read ahead. The others are read when they are needed.
    fn take_ahead(&mut self, Batch { module, mut places }: Batch, symbols: Vec<Option<Symbol>>) {
        self.ahead.forget(&places);
        places.truncate(symbols.len());
        self.keep(&module, places, symbols);
    }

    fn keep(&mut self, module: &Module, places: Vec<(Place, u64)>, symbols: Vec<Option<Symbol>>) {
        for ((place, address), symbol) in places.into_iter().zip(symbols) {
            let known = self.known_of(module, place, address, symbol);
            self.known.insert(place, known);
        }
    }

    /// The places of stacks that have no symbols yet.
    fn unknown<'stacks>(
        &mut self,
        stacks: impl Iterator<Item = WithGenerated<'stacks>>,
        modules: &ModuleTable,
    ) -> Unknown {
        let mut unknown = Unknown::default();
        // Whether the word after a word is the address of an executing instruction.
        let mut visited: FastMap<(StackFrame, bool), bool> = FastMap::default();
        for (stack, generated) in stacks {
            let mut is_executing = true;
            for frame in &stack.frames {
                let mut visit =
                    || self.visit(*frame, is_executing, (stack, generated), modules, &mut unknown);
                // Other words mean something else in another stack.
                is_executing = if generated.is_none() && frame.layer() < layer::FOUND {
                    *visited.entry((*frame, is_executing)).or_insert_with(visit)
                } else {
                    visit()
                };
            }
        }
        // In the order of addresses, each part of a file is read once: the child gives back the pages that it has read.
        unknown
            .by_module
            .values_mut()
            .for_each(|places| places.sort_unstable_by_key(|(_, address)| *address));
        unknown
    }

    /// Adds the place of a word to those without symbols. Returns true if the next word is the address of an executing
    /// instruction.
    fn visit(
        &mut self,
        frame: StackFrame,
        is_executing: bool,
        (stack, generated): WithGenerated<'_>,
        modules: &ModuleTable,
        unknown: &mut Unknown,
    ) -> bool {
        if generated.is_some_and(|generated| generated.contains_key(&frame.however_found())) {
            return false;
        }
        let looked_up = frame.address().saturating_sub(u64::from(!is_executing));
        let Some(located) = modules.find_frame(looked_up, frame.layer(), &stack.found) else { return false };
        let module = modules.get(located.module);
        let place = Place { file: module.version, offset: located.offset, is_executing };
        if let Some(known) = self.known.get(&place) {
            return known.frames.iter().any(|frame| frame.kind == FrameKind::Signal);
        }
        if unknown.places.contains(&place) {
            return false;
        }
        if place.is_signal(module) {
            self.known.insert(place, Known::signal(module));
            return true;
        }
        if let Some(address) = located.address {
            unknown.places.insert(place);
            unknown.by_module.entry(located.module).or_default().push((place, address));
        }
        false
    }
}

impl Ahead {
    fn forget(&mut self, places: &[(Place, u64)]) {
        for (place, _) in places {
            self.places.remove(place);
        }
    }
}
