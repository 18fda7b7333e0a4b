//! Search for the chain of tail calls from a called function to the executing one.

use std::ops::Range;
use std::rc::Rc;

use serde::{Deserialize, Serialize};

/// Maximum length of a chain: chains in compiled code have a few tail calls.
const MAX_CHAIN: usize = 16;
/// Maximum number of visited functions per chain, to bound the cost of hostile files.
pub(super) const MAX_VISITED: usize = 64;

/// A function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// Entry address.
    pub start: u64,
    /// Address ranges of its code.
    pub code: Vec<Range<u64>>,
}

impl Function {
    pub(super) fn holds(&self, address: u64) -> bool {
        self.code.iter().any(|code| code.contains(&address))
    }
}

/// A tail call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TailCall {
    /// Address after the instruction, like a return address.
    pub(super) end: u64,
    pub(super) target: Target,
}

/// Target of a tail call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// Code at this address of the same file.
    Code(u64),
    /// The symbol that the dynamic loader resolves this name to.
    Import(String),
}

/// The executing function.
#[derive(Debug, Clone)]
pub(super) enum Callee {
    /// The function around this address of the same file.
    Code(u64),
    /// A function of another file, exported under these names.
    Exported(Vec<String>),
}

/// Functions of a file.
pub(super) trait Functions {
    /// The function with this entry address.
    fn at(&mut self, address: u64) -> Option<Rc<Function>>;
    /// All tail calls of a function with their targets, if all are known. `None` also for more than [`MAX_VISITED`], which
    /// [`find`] does not follow.
    fn tail_calls(&mut self, function: &Function) -> Option<Rc<[TailCall]>>;
}

/// Addresses after the tail calls that lead from the function at `start` to the callee, outermost first; `None` unless there is
/// exactly one chain. Any uncertainty about a function on the way ends the search, because it might hide another chain.
pub(super) fn find(functions: &mut impl Functions, start: u64, callee: &Callee) -> Option<Vec<u64>> {
    let mut search =
        Search { functions, callee, visited: 0, path: Vec::new(), entered: Vec::new(), found: None };
    search.visit(start)?;
    search.found.filter(|chain| !chain.is_empty())
}

struct Search<'a, F> {
    functions: &'a mut F,
    callee: &'a Callee,
    visited: usize,
    /// Addresses after the tail calls up to here.
    path: Vec<u64>,
    /// Functions that contain these tail calls.
    entered: Vec<u64>,
    found: Option<Vec<u64>>,
}

impl<F: Functions> Search<'_, F> {
    /// Follows the tail calls of a function; `None` if the search has failed.
    fn visit(&mut self, address: u64) -> Option<()> {
        let function = self.functions.at(address)?;
        if matches!(self.callee, Callee::Code(callee) if function.holds(*callee)) {
            return self.arrive();
        }
        self.visited += 1;
        // A cycle could have been taken any number of times.
        if self.entered.contains(&address) || self.entered.len() == MAX_CHAIN || self.visited > MAX_VISITED {
            return None;
        }
        self.entered.push(address);
        for call in self.functions.tail_calls(&function)?.iter() {
            self.path.push(call.end);
            match (&call.target, self.callee) {
                (Target::Code(next), _) => self.visit(*next)?,
                (Target::Import(name), Callee::Exported(names)) if names.contains(name) => self.arrive()?,
                // The tail calls of another file's functions are unknown.
                (Target::Import(_), _) => return None,
            }
            self.path.pop();
        }
        self.entered.pop();
        Some(())
    }

    /// Records the chain, unless there already is one.
    fn arrive(&mut self) -> Option<()> {
        if self.found.is_some() {
            return None;
        }
        self.found = Some(self.path.clone());
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Functions by address with their tail calls; `None` if unknown.
    struct Graph(BTreeMap<u64, Option<Vec<Target>>>);

    impl Functions for Graph {
        fn at(&mut self, address: u64) -> Option<Rc<Function>> {
            self.0.contains_key(&address).then(|| {
                let code = address..address + 100;
                Rc::new(Function { start: address, code: vec![code] })
            })
        }

        fn tail_calls(&mut self, function: &Function) -> Option<Rc<[TailCall]>> {
            let targets = self.0[&function.start].clone()?;
            let call = |(index, target)| TailCall { end: function.start + 10 + index, target };
            Some((0..).zip(targets).map(call).collect())
        }
    }

    /// The chain from the function at 100 to the one at 900, given these tail calls.
    fn chain(calls: &[(u64, &[u64])]) -> Option<Vec<u64>> {
        let targets = |to: &[u64]| Some(to.iter().map(|to| Target::Code(*to)).collect());
        let mut graph = Graph(calls.iter().map(|(from, to)| (*from, targets(to))).collect());
        find(&mut graph, 100, &Callee::Code(950))
    }

    #[test]
    fn the_only_chain_is_found() {
        assert_eq!(chain(&[(100, &[900]), (900, &[])]), Some(vec![110]));
        assert_eq!(chain(&[(100, &[200]), (200, &[300, 900]), (300, &[]), (900, &[])]), Some(vec![110, 211]));
    }

    #[test]
    fn who_was_called_and_is_running_needs_no_chain() {
        let mut graph = Graph([(100, Some(vec![Target::Code(100)]))].into());
        assert_eq!(find(&mut graph, 100, &Callee::Code(150)), None);
    }

    #[test]
    fn several_chains_are_none() {
        let several: [&[(u64, &[u64])]; 3] = [
            &[(100, &[200, 300]), (200, &[900]), (300, &[900]), (900, &[])],
            &[(100, &[900, 900]), (900, &[])],
            // A cycle with an exit.
            &[(100, &[200]), (200, &[100, 900]), (900, &[])],
        ];
        assert!(several.into_iter().all(|calls| chain(calls).is_none()));
    }

    #[test]
    fn what_is_not_known_may_hide_another_chain() {
        let mut graph = Graph(
            [(100, Some(vec![Target::Code(900), Target::Code(200)])), (900, Some(vec![])), (200, None)]
                .into(),
        );
        assert_eq!(find(&mut graph, 100, &Callee::Code(950)), None);
        assert_eq!(chain(&[(100, &[900, 200]), (900, &[])]), None, "200 is no function");
        assert_eq!(chain(&[(100, &[])]), None);
    }

    #[test]
    fn a_function_of_another_file_is_known_by_its_name() {
        let import = |name: &str| Target::Import(name.to_owned());
        let found = |targets: Vec<Target>| {
            let mut graph = Graph([(100, Some(targets))].into());
            find(&mut graph, 100, &Callee::Exported(vec!["__libc_malloc".to_owned(), "malloc".to_owned()]))
        };
        assert_eq!(found(vec![import("malloc")]), Some(vec![110]));
        assert_eq!(found(vec![import("calloc")]), None);
        assert_eq!(found(vec![import("malloc"), import("realloc")]), None, "it may go on to malloc");
    }

    #[test]
    fn chains_without_end_are_not_followed() {
        let to = |length: u64| {
            let next = |index: u64| (index * 100, Some(vec![Target::Code((index + 1) * 100)]));
            let mut graph = Graph((1..50).map(next).collect());
            find(&mut graph, 100, &Callee::Code((1 + length) * 100))
        };
        assert_eq!(to(15).map(|chain| chain.len()), Some(15));
        assert_eq!(to(40), None);
    }
}
