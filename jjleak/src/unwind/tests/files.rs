//! Tests with the files that this process maps, and with libstdc++ if it is installed beside the C library.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::PathBuf,
};

use gimli::{BaseAddresses, EhFrame, EhFrameHdr, LittleEndian, UnwindContext, UnwindSection};
use jjleak_common::unwind::RowKind;
use object::{Object, ObjectSection};

use super::{
    evaluated::Evaluated,
    is_long,
    oracle::{Frame, Machine},
};
use crate::unwind::{ModuleRows, compile_described};

const EVERY_BYTE: u64 = u64::MAX;

/// Address range and path of this process's executable mapping whose path ends with `name`.
fn mapped(name: &str) -> (u64, u64, PathBuf) {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.contains("r-xp") && line.ends_with(name)).unwrap();
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next().unwrap().split_once('-').unwrap();
    let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).unwrap());
    (start, end, PathBuf::from(fields.next_back().unwrap()))
}

fn libc() -> PathBuf {
    mapped("/libc.so.6").2
}

fn vdso() -> Vec<u8> {
    let (start, end, _) = mapped("[vdso]");
    let mut bytes = vec![0; usize::try_from(end - start).unwrap()];
    File::open("/proc/self/mem").unwrap().read_exact_at(&mut bytes, start).unwrap();
    bytes
}

/// Compiles a module and compares it with gimli; returns the rows and the share of unsupported addresses.
fn compiled_as_evaluated(elf: &[u8], edge: u64) -> (ModuleRows, f64) {
    let rows = compile_described(elf).unwrap();
    let (looked_at, unsupported) = Evaluated::new(elf).assert_equal(&rows, edge);
    assert!(looked_at > 100);
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    let share = unsupported as f64 / looked_at as f64;
    (rows, share)
}

fn covers(rows: &ModuleRows, kind: RowKind) -> bool {
    rows.coverage(kind).bytes > 0
}

#[test]
fn every_byte_of_libc_unwinds_as_gimli_says() {
    let (rows, unsupported) = compiled_as_evaluated(&fs::read(libc()).unwrap(), EVERY_BYTE);
    assert!(unsupported < 0.001, "{unsupported}");
    assert!(covers(&rows, RowKind::Signal) && covers(&rows, RowKind::End) && covers(&rows, RowKind::Fp));
}

#[test]
fn every_byte_of_libstdcxx_unwinds_as_gimli_says() {
    // Not installed everywhere; libc covers the same rules.
    let Ok(elf) = fs::read(libc().with_file_name("libstdc++.so.6")) else { return };
    let (_, unsupported) = compiled_as_evaluated(&elf, EVERY_BYTE);
    assert!(unsupported < 0.001, "{unsupported}");
}

#[test]
fn every_byte_of_the_dynamic_linker_unwinds_as_gimli_says() {
    let linker = fs::read(mapped("/ld-linux-x86-64.so.2").2).unwrap();
    let (rows, unsupported) = compiled_as_evaluated(&linker, EVERY_BYTE);
    assert!(unsupported < 0.001, "{unsupported}");
    // The trampolines of lazy binding compute the CFA from %rbx.
    assert!(covers(&rows, RowKind::Plt) && covers(&rows, RowKind::Base));
}

/// The JVM's own code, if a JVM is installed: 191 thousand rows. Takes a minute.
#[test]
fn every_byte_of_libjvm_unwinds_as_gimli_says() {
    let machines = is_long().then(|| fs::read_dir("/usr/lib/jvm").ok()).flatten();
    let libraries =
        machines.into_iter().flatten().flatten().map(|entry| entry.path().join("lib/server/libjvm.so"));
    // Distributions install links to the same file.
    let distinct: std::collections::BTreeSet<_> =
        libraries.filter_map(|path| path.canonicalize().ok()).collect();
    for elf in distinct.into_iter().filter_map(|path| fs::read(path).ok()) {
        let (rows, unsupported) = compiled_as_evaluated(&elf, EVERY_BYTE);
        assert!(unsupported < 0.001, "{unsupported} of {:?}", rows.statistics());
    }
}

#[test]
fn stacks_begin_where_the_dynamic_linker_starts() {
    let linker = fs::read(mapped("/ld-linux-x86-64.so.2").2).unwrap();
    let start = object::File::parse(&*linker).unwrap().entry();
    let machine = Machine { instruction_pointer: start };
    assert_eq!(machine.apply(compile_described(&*linker).unwrap().find(start)), Frame::Outermost);
}

#[test]
fn every_rule_of_this_program_holds_where_gimli_says() {
    let (_, unsupported) = compiled_as_evaluated(&fs::read("/proc/self/exe").unwrap(), 2);
    assert!(unsupported < 0.01, "{unsupported}");
}

#[test]
#[ignore = "needs JJLEAK_UNWIND_FILES: paths of ELF files, separated by colons"]
fn every_byte_of_the_named_files_unwinds_as_gimli_says() {
    for path in std::env::split_paths(&std::env::var_os("JJLEAK_UNWIND_FILES").unwrap()) {
        let (rows, unsupported) = compiled_as_evaluated(&fs::read(&path).unwrap(), EVERY_BYTE);
        assert!(unsupported < 0.1, "{unsupported} of {path:?}: {:?}", rows.statistics());
    }
}

#[test]
fn every_byte_of_the_vdso_unwinds_as_gimli_says() {
    compiled_as_evaluated(&vdso(), EVERY_BYTE);
}

/// The C++ runtime finds an entry by binary search in `.eh_frame_hdr`; gimli does the same.
#[test]
fn the_runtimes_search_comes_to_the_same_rules() {
    let elf = fs::read(libc()).unwrap();
    let rows = compile_described(&*elf).unwrap();
    let file = object::File::parse(&*elf).unwrap();
    let [header, frames] = [".eh_frame_hdr", ".eh_frame"].map(|name| file.section_by_name(name).unwrap());
    let bases = BaseAddresses::default().set_eh_frame_hdr(header.address()).set_eh_frame(frames.address());
    let parsed = EhFrameHdr::new(header.data().unwrap(), LittleEndian).parse(&bases, 8).unwrap();
    let table = parsed.table().unwrap();
    let eh_frame = EhFrame::new(frames.data().unwrap(), LittleEndian);
    let mut context = UnwindContext::new();
    let end = rows.text_start() + u64::from(rows.rows().last().unwrap().address());
    for address in (rows.text_start()..end).step_by(53) {
        let machine = Machine { instruction_pointer: address };
        let found = machine.apply(rows.find(address));
        let fde = table.fde_for_address(&eh_frame, &bases, address, EhFrame::cie_from_offset);
        let Ok(fde) = fde.as_ref() else {
            assert_eq!(found, Frame::Unknown, "at {address:#x}");
            continue;
        };
        let rules = fde.unwind_info_for_address(&eh_frame, &bases, &mut context, address).unwrap();
        if found != Frame::Unsupported {
            assert_eq!(Some(found), machine.evaluate(&eh_frame, fde, rules), "at {address:#x}");
        }
    }
}

#[test]
fn stripped_section_headers_change_nothing() {
    // A program with debug information can have more in its section `.debug_frame`.
    for name in ["/ld-linux-x86-64.so.2", "/libgcc_s.so.1", "/libm.so.6"] {
        let mut elf = fs::read(mapped(name).2).unwrap();
        let with_sections = compile_described(&*elf).unwrap();
        elf[0x28..0x30].fill(0); // e_shoff
        elf[0x3c..0x40].fill(0); // e_shnum, e_shstrndx
        let without = compile_described(&*elf).unwrap();
        assert_eq!(without.rows(), with_sections.rows());
    }
}
