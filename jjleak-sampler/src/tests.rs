use std::alloc::System;
use std::sync::Mutex;

use super::*;

/// Tests of the table and of the semaphore, which are the process's own, run one after the other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Allocates, resizes and frees, and keeps some blocks to the end.
fn work<A: GlobalAlloc>(allocator: &A, rounds: usize, seed: usize) {
    let mut kept = Vec::new();
    for round in 0..rounds {
        let number = (round * 7919 + seed * 104_729) % 5000;
        let layout = Layout::from_size_align(1 + number, 1 << (number % 7)).unwrap();
        // SAFETY: the layouts are not empty, and each block is freed once, with its own.
        unsafe {
            let block = if number.is_multiple_of(3) {
                allocator.alloc_zeroed(layout)
            } else {
                allocator.alloc(layout)
            };
            assert!(!number.is_multiple_of(3) || block.read() == 0);
            let content = u8::try_from(number % 251).unwrap();
            block.write_bytes(content, layout.size());
            let new_size = 1 + (number * 13) % 9000;
            let moved = allocator.realloc(block, layout, new_size);
            let kept_bytes = std::slice::from_raw_parts(moved, layout.size().min(new_size));
            assert!(kept_bytes.iter().all(|byte| *byte == content), "a block keeps its content");
            kept.push((moved, Layout::from_size_align(new_size, layout.align()).unwrap()));
            if number.is_multiple_of(2) {
                let (block, layout) = kept.swap_remove(number % kept.len());
                allocator.dealloc(block, layout);
            }
        }
    }
    for (block, layout) in kept {
        // SAFETY: as above.
        unsafe { allocator.dealloc(block, layout) };
    }
}

#[test]
fn the_table_is_empty_once_all_blocks_are_freed_by_many_threads() {
    let _one = ONE_AT_A_TIME.lock().unwrap();
    let (sampler, before) = (Sampler::with_distance(System, 5000), dropped());
    std::thread::scope(|scope| {
        for seed in 0..16 {
            let sampler = &sampler;
            scope.spawn(move || {
                for round in 0..40 {
                    // Consumers come and go.
                    probes::pretend_consumers(u16::from(round % 3 != 0));
                    work(sampler, 500, seed);
                }
            });
        }
    });
    probes::pretend_consumers(0);
    assert_eq!((sampled_blocks::live(), dropped()), (0, before));
}

#[test]
fn no_address_is_never_in_the_table() {
    let _one = ONE_AT_A_TIME.lock().unwrap();
    let before = sampled_blocks::live();
    assert!(!hooks::freed(std::ptr::null_mut()));
    assert!(sampled_blocks::insert(64) && sampled_blocks::insert(64), "a free that was not seen");
    assert_eq!(sampled_blocks::live(), before + 1);
    assert!(sampled_blocks::remove(64) && !sampled_blocks::remove(64));
    assert_eq!(sampled_blocks::live(), before);
}

#[test]
fn nothing_is_sampled_unless_somebody_consumes_it() {
    let _one = ONE_AT_A_TIME.lock().unwrap();
    let sampler = Sampler::with_distance(System, 1);
    let layout = Layout::new::<[u64; 100]>();
    // SAFETY: a layout that is not empty, and a block that is freed with it.
    unsafe {
        let block = sampler.alloc(layout);
        assert!(!sampled_blocks::are_any());
        sampler.dealloc(block, layout);
        probes::pretend_consumers(1);
        let block = sampler.alloc(layout);
        probes::pretend_consumers(0);
        assert_eq!(sampled_blocks::live(), 1, "its free is announced, whoever listens then");
        sampler.dealloc(block, layout);
    }
    assert_eq!(sampled_blocks::live(), 0);
}

#[test]
fn samples_for_which_there_is_no_room_are_dropped_and_counted() {
    let _one = ONE_AT_A_TIME.lock().unwrap();
    let before = dropped();
    let addresses: Vec<_> = (1..200_000).map(|number| number * 64).collect();
    let inserted: Vec<_> =
        addresses.iter().copied().filter(|address| sampled_blocks::insert(*address)).collect();
    let lost = u64::try_from(addresses.len() - inserted.len()).unwrap();
    assert!(inserted.len() > 40_000 && dropped() - before == lost);
    assert!(
        addresses
            .iter()
            .all(|address| { sampled_blocks::remove(*address) == inserted.binary_search(address).is_ok() })
    );
    assert_eq!(sampled_blocks::live(), 0);
}
