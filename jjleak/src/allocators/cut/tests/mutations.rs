//! Functions with a known proof, with one instruction changed at random: either no proof remains, or the probes are still exact,
//! however the function is run.

#![expect(clippy::cast_possible_truncation, reason = "random bytes")]

use std::{collections::HashSet, env, fs};

use iced_x86::Register;

use super::libraries::libraries;
use super::machine::{End, Machine, Random};
use super::*;
use crate::allocators::cut::{flow::Flow, sites};

/// Number of runs of each function.
const RUNS: u64 = 100;
/// Number of changes to each small function, and to the machine's own malloc, which takes about 20 ms per change.
const CHANGES: u64 = 400;
const CHANGES_OF_MALLOC: u64 = 60;

/// Factor on the number of changes, for longer tests.
fn times() -> u64 {
    env::var("JJLEAK_CHANGES").map_or(1, |times| times.parse().unwrap())
}

/// A function, with the code around it.
struct Subject {
    code: Vec<u8>,
    at: u64,
    symbols: Vec<Symbol>,
}

impl Subject {
    fn small(code: &[u8]) -> Self {
        Self { code: code.to_vec(), at: 0, symbols: Vec::new() }
    }

    /// The C library's malloc, with all of its code.
    fn malloc(elf: &[u8]) -> Option<Self> {
        let names = |_: &Prefixes| NO_RETURN.iter().chain(&["malloc"]).map(|&it| it.to_owned()).collect();
        let image = Image::parse(elf, None, families::MALLOCX, families::JEMALLOC_INTERNALS, names).unwrap();
        let mut all = Vec::new();
        assert!(image.visit_code(|address, code| all.push((address, code.to_vec()))));
        let (begin, code) = all.swap_remove(0);
        let abort = |name: &'static str| {
            image.definitions(name).first().map(|it| function(name, it.address() - begin, 1))
        };
        let at = image.definitions("malloc").first()?.address() - begin;
        let symbols = NO_RETURN.iter().filter_map(|name| abort(name)).collect();
        Some(Self { code, at, symbols })
    }

    /// The flow through the function, and the proven sites; ignores jumps from elsewhere into it.
    fn prove(&self, code: &[u8]) -> Result<(Flow, Vec<Site>), NoCut> {
        let elf = test_elf::elf(code, &self.symbols);
        let names = |_: &Prefixes| NO_RETURN.iter().map(|&name| name.to_owned()).collect();
        let image = Image::parse(&elf, None, families::MALLOCX, families::JEMALLOC_INTERNALS, names).unwrap();
        let (follower, accounted) = (Follower::new(&image), HashSet::new());
        let entry = CODE_ADDRESS + self.at;
        let flow = Explorer::new(&follower, &accounted).flow(entry, Register::RDI)?;
        let sites = sites::choose(&flow)?;
        let site = |(at, (step, view)): (u64, _)| site(at.wrapping_sub(entry), step, view);
        let sites = sites.into_iter().map(site).collect::<Option<_>>().ok_or(NoCut::TooLarge)?;
        Ok((flow, sites))
    }

    /// The code with one instruction changed.
    fn changed(&self, flow: &Flow, random: &mut Random) -> Vec<u8> {
        let pick = |random: &mut Random| {
            let node = flow.nodes.values().nth(random.below(flow.nodes.len())).unwrap();
            let at = usize::try_from(node.instruction.ip() - CODE_ADDRESS).unwrap();
            at..at + node.instruction.len()
        };
        let mut code = self.code.clone();
        let it = pick(random);
        match random.below(5) {
            0 => code[it].fill_with(|| random.bits() as u8),
            1 => code[it].fill(0x90),
            2 => {
                let other = pick(random);
                let length = it.len().min(other.len());
                code.copy_within(other.start..other.start + length, it.start);
                code[it.start + length..it.end].fill(0x90);
            }
            3 => code[it.start + random.below(it.len())] = random.bits() as u8,
            _ => code[it.start + random.below(it.len())] ^= 1 << random.below(8),
        }
        code
    }

    /// Number of changes that leave a proof; panics if a proof is wrong.
    fn check(&self, changes: u64) -> usize {
        let (flow, sites) = self.prove(&self.code).unwrap();
        let exact = runs(&flow, &sites, 0).unwrap();
        assert!(exact > (RUNS / 10) as usize, "{exact} runs return");
        let mut proven = 0;
        for seed in 1..=changes {
            let code = self.changed(&flow, &mut Random::new(seed));
            let Ok((flow, sites)) = self.prove(&code) else { continue };
            proven += 1;
            if let Err(what) = runs(&flow, &sites, seed) {
                let code: Vec<_> = flow.nodes.iter().map(|(at, it)| (at, it.instruction.code())).collect();
                panic!("change {seed}: {what}\n{code:x?}\n{sites:x?}");
            }
        }
        proven
    }
}

/// Number of exact runs; the error of the first that is wrong. Runs that do not return count as neither.
fn runs(flow: &Flow, sites: &[Site], seed: u64) -> Result<usize, String> {
    let mut exact = 0;
    for run in 0..RUNS {
        match Machine::new(flow, sites, Random::new(seed << 32 | run)).run(Register::RDI) {
            End::Exact => exact += 1,
            End::Never => {}
            End::Wrong(what) => return Err(what),
        }
    }
    Ok(exact)
}

#[test]
fn what_is_proven_of_a_changed_function_is_exact() {
    for code in [&KEEPS_SIZE[..], &LOSES_SIZE, &FAILS_BY_ARGUMENT, &SAVES_FRAME_POINTER, &SPILLS] {
        let proven = Subject::small(code).check(CHANGES * times());
        assert!(proven > 10, "the change of {proven} is nothing to see");
    }
}

#[test]
fn what_is_proven_of_a_changed_malloc_is_exact() {
    for path in libraries() {
        let Some(malloc) = Subject::malloc(&fs::read(&path).unwrap()) else { continue };
        if malloc.prove(&malloc.code).is_ok() {
            assert!(malloc.check(CHANGES_OF_MALLOC * times()) > 0, "{}", path.display());
        }
    }
}
