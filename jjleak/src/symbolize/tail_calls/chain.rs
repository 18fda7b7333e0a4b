//! The chain of tail calls between a function that was called and the one that was found running in its place.

use std::ops::Range;
use std::rc::Rc;

/// Longest chain that is followed: compilers' output has chains of a few.
const MAX_CHAIN: usize = 16;
/// Most functions that are visited for one chain, so that a hostile file costs no more than a program.
const MAX_VISITED: usize = 64;

/// A function.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Function {
    /// Where it begins.
    pub(super) start: u64,
    /// Its code, which can be in several places.
    pub(super) code: Vec<Range<u64>>,
}

impl Function {
    pub(super) fn holds(&self, address: u64) -> bool {
        self.code.iter().any(|code| code.contains(&address))
    }
}

/// A tail call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TailCall {
    /// Address after the instruction, as a return address has it.
    pub(super) end: u64,
    pub(super) target: Target,
}

/// Who is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// Code at this address of the same file.
    Code(u64),
    /// What the dynamic loader finds under this name.
    Import(String),
}

/// Who was found running.
#[derive(Debug, Clone)]
pub(super) enum Callee {
    /// The function around this address of the same file.
    Code(u64),
    /// A function of another file, exported under these names.
    Exported(Vec<String>),
}

/// What is known of a file's functions.
pub(super) trait Functions {
    /// The function that begins at an address.
    fn at(&mut self, address: u64) -> Option<Rc<Function>>;
    /// All tail calls of a function, if these are known, and who is called by each.
    fn tail_calls(&mut self, function: &Function) -> Option<Vec<TailCall>>;
}

/// The ends of the tail calls that lead from the function that begins at `start` to the callee, the outermost first; nothing
/// unless there is one chain that is the only one. Whatever is not certain about any function on the way ends the search, for it
/// might hide another chain.
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
    /// Ends of the tail calls up to here.
    path: Vec<u64>,
    /// The functions that they are in.
    entered: Vec<u64>,
    found: Option<Vec<u64>>,
}

impl<F: Functions> Search<'_, F> {
    /// Follows the tail calls of a function; nothing when the search is in vain.
    fn visit(&mut self, address: u64) -> Option<()> {
        let function = self.functions.at(address)?;
        if matches!(self.callee, Callee::Code(callee) if function.holds(*callee)) {
            return self.arrive();
        }
        self.visited += 1;
        // Who comes round to a function again may have done so any number of times.
        if self.entered.contains(&address) || self.entered.len() == MAX_CHAIN || self.visited > MAX_VISITED {
            return None;
        }
        self.entered.push(address);
        for call in self.functions.tail_calls(&function)? {
            self.path.push(call.end);
            match (&call.target, self.callee) {
                (Target::Code(next), _) => self.visit(*next)?,
                (Target::Import(name), Callee::Exported(names)) if names.contains(name) => self.arrive()?,
                // What another file's function calls is not known.
                (Target::Import(_), _) => return None,
            }
            self.path.pop();
        }
        self.entered.pop();
        Some(())
    }

    /// Keeps the chain, unless there is another one.
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

    /// Functions by address, each with its tail calls; `None` where these are not known.
    struct Graph(BTreeMap<u64, Option<Vec<Target>>>);

    impl Functions for Graph {
        fn at(&mut self, address: u64) -> Option<Rc<Function>> {
            self.0.contains_key(&address).then(|| {
                let code = address..address + 100;
                Rc::new(Function { start: address, code: vec![code] })
            })
        }

        fn tail_calls(&mut self, function: &Function) -> Option<Vec<TailCall>> {
            let targets = self.0[&function.start].clone()?;
            let call = |(index, target)| TailCall { end: function.start + 10 + index, target };
            Some((0..).zip(targets).map(call).collect())
        }
    }

    /// The chain from the function at 100, of these calls, to one at 900.
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
            // Round and round, and out at some time.
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
