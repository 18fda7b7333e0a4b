use std::fmt::Write;
use std::process::Command;

use jjleak_common::samples::NO_REGISTER;

use super::*;
use crate::file_content::Content;

/// Notes as `<sys/sdt.h>` writes them, for probes of these names and arguments.
fn library(probes: &[(&str, &str, &str)]) -> Vec<u8> {
    let mut code = "\t.text\nwork:\n".to_owned();
    let mut notes = "\t.section .note.stapsdt,\"?\",\"note\"\n".to_owned();
    for (index, (provider, name, arguments)) in probes.iter().enumerate() {
        write!(code, "\tret\n.Lprobe{index}: nop\n").unwrap();
        write!(
            notes,
            "\t.balign 4\n\t.4byte 992f-991f, 994f-993f, 3\n991: .asciz \"stapsdt\"\n992: .balign 4\n993: .8byte .Lprobe{index}\n\
             \t.8byte _.stapsdt.base\n\t.8byte semaphore\n\t.asciz \"{provider}\"\n\t.asciz \"{name}\"\n\
             \t.asciz \"{arguments}\"\n994: .balign 4\n"
        ).unwrap();
    }
    let base = "\t.section .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n\
                \t.weak _.stapsdt.base\n\t.hidden _.stapsdt.base\n_.stapsdt.base: .space 1\n\
                \t.section .probes,\"aw\",\"progbits\"\nsemaphore: .2byte 0\n";
    let folder = tempfile::tempdir().unwrap();
    let (source, built) = (folder.path().join("probes.s"), folder.path().join("probes.so"));
    std::fs::write(&source, code + &notes + base).unwrap();
    let status =
        Command::new("gcc").args(["-shared", "-nostdlib", "-o"]).arg(&built).arg(&source).status().unwrap();
    assert!(status.success());
    std::fs::read(built).unwrap()
}

fn found(elf: &[u8]) -> ModuleAllocators {
    sample_sites(Content::from(elf)).unwrap()
}

#[test]
fn probes_are_found_with_their_arguments_and_their_semaphore() {
    let elf = library(&[
        ("libc", "alloc", "8@%rax"),
        ("otel_memory", "alloc", "8@%rdi -4@$16 8@-8(%rbp)"),
        ("otel_memory", "free", "8@%rdi"),
    ]);
    let found = found(&elf);
    let [sampler] = &found.profiled[..] else { panic!("{found:?}") };
    let [alloc, free] = &sampler.sites[..] else { panic!("{sampler:?}") };
    assert_eq!((alloc.point, free.point), (ProbePoint::Sampled, ProbePoint::SampleFreed));
    assert_eq!(elf[usize::try_from(alloc.offset()).unwrap()], 0x90, "the probe is a no-op");
    let sample = alloc.sample.unwrap();
    assert_eq!((sample.site.size.value, sample.site.size.register), (16, NO_REGISTER));
    assert_eq!((sample.site.weighted_bytes.in_memory, sample.site.counts_points), (1, 0));
    let semaphore = usize::try_from(sample.semaphore.unwrap()).unwrap();
    assert_eq!(elf[semaphore..semaphore + 2], [0, 0]);
    assert!(found.unfollowed.is_empty(), "{found:?}");
}

#[test]
fn of_two_providers_in_a_file_one_is_used() {
    let of = |provider| (provider, "alloc", "");
    let sampler = |elf: &[u8]| found(elf).profiled.into_iter().map(|it| it.family).collect::<Vec<_>>();
    assert_eq!(sampler(&library(&[of("ddheap"), of("otel_memory")])), ["otel_memory"]);
    let only = found(&library(&[of("ddheap")]));
    let said: Vec<_> = only.unfollowed.iter().map(ToString::to_string).collect();
    assert_eq!(said, ["ddheap:free: the sampler announces no frees: all that it samples counts as live"]);
    assert_eq!(only.profiled[0].sites[0].sample.unwrap().site.counts_points, 1);
}

#[test]
fn what_cannot_be_read_is_named() {
    let found = found(&library(&[
        ("otel_memory", "alloc", "8@size(%rip) 8@%rdi 8@%rdi"),
        ("otel_memory", "alloc_v2", ""),
    ]));
    let said: Vec<_> = found.unfollowed.iter().map(ToString::to_string).collect();
    assert!(said[0].starts_with("otel_memory:alloc: its arguments are described"), "{said:?}");
    assert!(said[1].starts_with("otel_memory:alloc_v2: jjleak knows"), "{said:?}");
    assert!(found.profiled.is_empty());
}

#[test]
fn damaged_notes_are_read_within_bounds() {
    let elf = library(&[("otel_memory", "alloc", "8@%rdi 8@%rsi 8@%rdx"), ("otel_memory", "free", "8@%rdi")]);
    let mut random = fastrand::Rng::with_seed(22);
    for _ in 0..20_000 {
        let mut damaged = elf.clone();
        for _ in 0..random.usize(1..8) {
            let at = random.usize(..damaged.len());
            damaged[at] = random.u8(..);
        }
        damaged.truncate(random.usize(damaged.len() / 2..=damaged.len()));
        let _ = sample_sites(Content::from(&damaged[..]));
    }
}
