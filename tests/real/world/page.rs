//! The page in the repository: results, and deviations with their reasons.

use std::fmt::Write;
use std::fs;

use super::judgement::{Figures, Judgement, OracleFigures};
use super::profile::{Amount, Stacks};
use super::table::{Oracle, Target};

/// Path of the page in the repository.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/benchmarks/world.md");

const HEAD: &str = "\
# The world

Programs that nobody here wrote, counted by jjleak and by an oracle that shares no code with it. `cargo xtask world` installs them,
runs them, and writes this page anew. It fails if a program deviates and the deviation is not listed here.

Each program runs alone; under `jjleak --follow` for a first time, when jjleak has never seen it; a second time; and once more with
the oracle: a preloaded library that counts calls, bytes and live blocks of each process. It sees the same calls as jjleak, and
allocates nothing itself. Both count for each process what its last program allocates, and are compared process by process.

| column | meaning |
|---|---|
| allocations, bytes, live bytes | as jjleak counts them, then *equal* or what the oracle says. `+ n`: by allocators inside of files, which nothing can be loaded before |
| complete | allocations with a complete stack, in the first and in the second run. Stacks through code that a runtime has generated without call frame information are set aside: `JIT` is their share in the second run |
| lost | loss counters of all three runs |
| peak | jjleak's own resident memory at most, reports included |
| time | alone, and under jjleak for the second time, from start to the end of the report |
";

/// Writes the page.
pub(super) fn write(judgements: &[Judgement]) {
    let mut page = HEAD.to_owned();
    summarize(&mut page, judgements);
    page.push_str(
        "\n| program | allocations | bytes | live bytes | complete, first | second | JIT | lost | peak | time |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
    );
    for judgement in judgements {
        let name = judgement.program.name;
        match &judgement.figures {
            Some(figures) => row(&mut page, name, figures),
            None => writeln!(page, "| {name} | not measured | | | | | | | | |").unwrap(),
        }
    }
    deviations(&mut page, judgements);
    fs::write(PAGE, page).unwrap();
}

fn summarize(page: &mut String, judgements: &[Judgement]) {
    let without = |target: Target| {
        judgements.iter().filter(|it| it.deviations.iter().all(|(found, _)| *found != target)).count()
    };
    let compared = |it: &&Judgement| !matches!(it.program.oracle, Oracle::Nobody(_));
    let all = judgements.len();
    let with_oracle = judgements.iter().filter(compared).count();
    let equal = judgements.iter().filter(compared).filter(|it| {
        it.figures.is_some() && it.deviations.iter().all(|(target, _)| *target != Target::Allocated)
    });
    writeln!(
        page,
        "\nOf {all} programs, {with_oracle} have an oracle: allocations and bytes are equal in {}. Output and exit code are unchanged in \
         {}. At least 99.9 % of the stacks are complete in the second run of {}. Nothing is lost in {}.",
        equal.count(),
        without(Target::Output),
        without(Target::Complete),
        without(Target::Losses),
    )
    .unwrap();
}

fn row(page: &mut String, name: &str, figures: &Figures) {
    let (allocations, bytes, live) = match figures.oracle {
        Some(OracleFigures::Whole(oracle)) => (
            compared(figures.counted.objects, Some(oracle.allocated.objects)),
            compared(figures.counted.bytes, Some(oracle.allocated.bytes)),
            compared(figures.counted_live.bytes, Some(oracle.live.bytes)),
        ),
        Some(OracleFigures::Calls(calls)) => (
            compared(figures.counted.objects, Some(calls)),
            compared(figures.counted.bytes, None),
            compared(figures.counted_live.bytes, None),
        ),
        None => (
            compared(figures.counted.objects, None),
            compared(figures.counted.bytes, None),
            compared(figures.counted_live.bytes, None),
        ),
    };
    let beside = |amount: Amount| match amount.objects {
        0 => String::new(),
        objects => format!(" + {objects}"),
    };
    let lost: Vec<_> = figures.lost.iter().map(|(name, count)| format!("{name} {count}")).collect();
    writeln!(
        page,
        "| {name} | {allocations}{} | {bytes} | {live} | {} | {} | {} | {} | {} MiB | {:.1} s, {:.1} s |",
        beside(figures.beside),
        percent(figures.first.complete_millionths()),
        percent(figures.second.complete_millionths()),
        generated(&figures.second),
        if lost.is_empty() { "-".to_owned() } else { lost.join(", ") },
        figures.peak_mib,
        figures.alone_s,
        figures.profiled_s,
    )
    .unwrap();
}

fn compared(counted: u64, oracle: Option<u64>) -> String {
    match oracle {
        None => format!("{counted}, no oracle"),
        Some(oracle) if oracle == counted => format!("{counted}, equal"),
        Some(oracle) => format!("{counted}, **{oracle}**"),
    }
}

/// Rounded down, so that only 100 % reads as 100 %.
fn percent(millionths: u64) -> String {
    match millionths / 100 {
        10_000 => "100 %".to_owned(),
        hundredths => format!("{}.{:02} %", hundredths / 100, hundredths % 100),
    }
}

fn generated(stacks: &Stacks) -> String {
    let all = stacks.complete + stacks.generated + stacks.others.values().sum::<u64>();
    match stacks.generated {
        0 => "-".to_owned(),
        generated => percent(generated * 1_000_000 / all.max(1)),
    }
}

fn deviations(page: &mut String, judgements: &[Judgement]) {
    page.push_str("\n## Deviations\n\n| program | of | seen | reason |\n|---|---|---|---|\n");
    for judgement in judgements {
        for (target, seen) in &judgement.deviations {
            let reason = judgement.excused(*target).unwrap_or("**not known**");
            let seen = seen.replace('|', "\\|").replace('\n', " ");
            writeln!(page, "| {} | {target:?} | {seen} | {reason} |", judgement.program.name).unwrap();
        }
    }
}
