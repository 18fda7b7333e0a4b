//! Allocates as it is told, one number of blocks a line, in four threads, and keeps half of them. Says what it has allocated and what of it
//! is live, in bytes and blocks.

use std::alloc::System;
use std::io::{self, BufRead, Write};

use jjleak_sampler::Sampler;

#[global_allocator]
static ALLOCATOR: Sampler<System> = Sampler::with_distance(System, 16 << 10);

const THREADS: usize = 4;

/// Bytes and blocks that were allocated, and that are kept.
#[derive(Default)]
struct Ledger {
    allocated: [usize; 2],
    live: [usize; 2],
}

/// Allocates blocks of many sizes, and keeps every second one.
#[inline(never)]
fn keep_some(blocks: usize, ledger: &mut Ledger) -> Vec<Box<[u8]>> {
    let mut kept = Vec::with_capacity(blocks);
    let list = kept.capacity() * size_of::<Box<[u8]>>();
    for of in [&mut ledger.allocated, &mut ledger.live] {
        of[0] += list;
        of[1] += 1;
    }
    for index in 0..blocks {
        let size = 16 + (index * 7919) % 500 + if index % 100 == 0 { 20_000 } else { 0 };
        let block = vec![1u8; size].into_boxed_slice();
        ledger.allocated[0] += size;
        ledger.allocated[1] += 1;
        if index % 2 == 0 {
            ledger.live[0] += size;
            ledger.live[1] += 1;
            kept.push(block);
        }
    }
    kept
}

fn main() -> io::Result<()> {
    let mut out = io::stdout();
    let mut kept = Vec::new();
    let mut sums = Ledger::default();
    writeln!(out, "ready")?;
    for line in io::stdin().lock().lines() {
        let blocks: usize = line?.trim().parse().map_err(io::Error::other)?;
        let work = move || {
            let mut ledger = Ledger::default();
            (keep_some(blocks / THREADS, &mut ledger), ledger)
        };
        let threads: Vec<_> = (0..THREADS).map(|_| std::thread::spawn(work)).collect();
        for thread in threads {
            let Ok((blocks, ledger)) = thread.join() else {
                return Err(io::Error::other("a thread has panicked"));
            };
            kept.push(blocks);
            for (sum, own) in [(&mut sums.allocated, ledger.allocated), (&mut sums.live, ledger.live)] {
                sum[0] += own[0];
                sum[1] += own[1];
            }
        }
        let ([bytes, objects], [live_bytes, live_objects]) = (sums.allocated, sums.live);
        writeln!(out, "{bytes} {objects} {live_bytes} {live_objects}")?;
        writeln!(out, "done")?;
    }
    Ok(())
}
