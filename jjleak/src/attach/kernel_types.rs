//! Where fields are in this kernel's structures, from its BTF type information (Documentation/bpf/btf.rst).

use std::path::Path;
use std::{fs, io};

/// Offsets of the fields that lead to a task's pending return probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReturnInstanceOffsets {
    pub(super) task_utask: u64,
    pub(super) utask_return_instances: u64,
    pub(super) stack: u64,
    pub(super) address: u64,
    pub(super) next: u64,
}

impl ReturnInstanceOffsets {
    /// Reads them; `None` when the kernel's structures look otherwise.
    pub(super) fn read(vmlinux: &Path) -> io::Result<Option<Self>> {
        Ok(Btf::parse(&fs::read(vmlinux)?).and_then(|btf| Self::find(&btf)))
    }

    fn find(btf: &Btf<'_>) -> Option<Self> {
        Some(Self {
            task_utask: btf.offset("task_struct", "utask")?,
            utask_return_instances: btf.offset("uprobe_task", "return_instances")?,
            stack: btf.offset("return_instance", "stack")?,
            address: btf.offset("return_instance", "orig_ret_vaddr")?,
            next: btf.offset("return_instance", "next")?,
        })
    }
}

/// Offsets of the fields that tell one process from another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct TaskOffsets {
    pub(super) tgid: u64,
    pub(super) mm: u64,
    pub(super) signal: u64,
    pub(super) signal_live: u64,
}

impl TaskOffsets {
    /// Reads them; `None` when the kernel's structures look otherwise.
    pub(super) fn read(vmlinux: &Path) -> io::Result<Option<Self>> {
        Ok(Btf::parse(&fs::read(vmlinux)?).and_then(|btf| Self::find(&btf)))
    }

    fn find(btf: &Btf<'_>) -> Option<Self> {
        Some(Self {
            tgid: btf.offset("task_struct", "tgid")?,
            mm: btf.offset("task_struct", "mm")?,
            signal: btf.offset("task_struct", "signal")?,
            // An atomic_t: a structure of one counter.
            signal_live: btf.offset("signal_struct", "live")?,
        })
    }
}

/// Offsets of the fields that tell what a process maps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct MappingOffsets {
    pub(super) vma_start: u64,
    pub(super) vma_end: u64,
    pub(super) vma_flags: u64,
    pub(super) vma_page_offset: u64,
    pub(super) vma_file: u64,
    pub(super) file_inode: u64,
    pub(super) inode_number: u64,
    pub(super) inode_super: u64,
    pub(super) inode_changed_s: u64,
    pub(super) inode_changed_ns: u64,
    pub(super) super_device: u64,
    pub(super) unmapped_area_length: u64,
}

impl MappingOffsets {
    /// Reads them; `None` when the kernel's structures look otherwise.
    pub(super) fn read(vmlinux: &Path) -> io::Result<Option<Self>> {
        Ok(Btf::parse(&fs::read(vmlinux)?).and_then(|btf| Self::find(&btf)))
    }

    fn find(btf: &Btf<'_>) -> Option<Self> {
        // Since Linux 6.10 there are two fields, and before that one of type timespec64 under either name.
        let whole = || ["__i_ctime", "i_ctime"].iter().find_map(|name| btf.offset("inode", name));
        let seconds = btf.offset("inode", "i_ctime_sec").or_else(whole)?;
        let nanoseconds = btf.offset("inode", "i_ctime_nsec").or_else(|| whole().map(|offset| offset + 8))?;
        Some(Self {
            vma_start: btf.offset("vm_area_struct", "vm_start")?,
            vma_end: btf.offset("vm_area_struct", "vm_end")?,
            vma_flags: btf.offset("vm_area_struct", "vm_flags")?,
            vma_page_offset: btf.offset("vm_area_struct", "vm_pgoff")?,
            vma_file: btf.offset("vm_area_struct", "vm_file")?,
            file_inode: btf.offset("file", "f_inode")?,
            inode_number: btf.offset("inode", "i_ino")?,
            inode_super: btf.offset("inode", "i_sb")?,
            inode_changed_s: seconds,
            inode_changed_ns: nanoseconds,
            super_device: btf.offset("super_block", "s_dev")?,
            unmapped_area_length: btf.offset("vm_unmapped_area_info", "length")?,
        })
    }
}

/// Offsets of the fields that lead to a process's break.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct BreakOffsets {
    pub(super) task_mm: u64,
    pub(super) mm_brk: u64,
}

impl BreakOffsets {
    /// Reads them; `None` when the kernel's structures look otherwise.
    pub(super) fn read(vmlinux: &Path) -> io::Result<Option<Self>> {
        Ok(Btf::parse(&fs::read(vmlinux)?).and_then(|btf| Self::find(&btf)))
    }

    fn find(btf: &Btf<'_>) -> Option<Self> {
        Some(Self { task_mm: btf.offset("task_struct", "mm")?, mm_brk: btf.offset("mm_struct", "brk")? })
    }
}

/// The parts of a BTF blob.
struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
}

const MAGIC: u16 = 0xeb9f;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
/// How deep structures without a name are followed; `mm_struct` has one level.
const MAX_NESTED: u32 = 2;

impl<'a> Btf<'a> {
    fn parse(data: &'a [u8]) -> Option<Self> {
        let word = |at| read_u32(data, at).map(|word| word as usize);
        if u16::from_le_bytes(data.get(..2)?.try_into().ok()?) != MAGIC {
            return None;
        }
        let header = word(4)?;
        let (types, types_length) = (header.checked_add(word(8)?)?, word(12)?);
        let (strings, strings_length) = (header.checked_add(word(16)?)?, word(20)?);
        Some(Self {
            types: data.get(types..types.checked_add(types_length)?)?,
            strings: data.get(strings..strings.checked_add(strings_length)?)?,
        })
    }

    /// Offset in bytes of a field of a structure; also of one in a structure without a name inside of it.
    fn offset(&self, structure: &str, field: &str) -> Option<u64> {
        let (at, _) = self.headers().find(|&(at, info)| {
            let name = read_u32(self.types, at);
            kind(info) == KIND_STRUCT && name.is_some_and(|name| self.is_named(name, structure))
        })?;
        self.offset_in(at, field, MAX_NESTED)
    }

    /// Offset in bytes of a field of the structure or union whose header is at `at`.
    fn offset_in(&self, at: usize, field: &str, depth: u32) -> Option<u64> {
        let info = read_u32(self.types, at + 4)?;
        // With the top bit set, the low 24 bits of a member's offset are the offset.
        let mask = if info >> 31 == 1 { 0x00ff_ffff } else { u32::MAX };
        (0..count(info)).find_map(|index| {
            let member = at + 12 + index * 12;
            let (name, inner) = (read_u32(self.types, member)?, read_u32(self.types, member + 4)?);
            let offset = u64::from((read_u32(self.types, member + 8)? & mask) / 8);
            if self.is_named(name, field) {
                return Some(offset);
            }
            if !self.is_named(name, "") || depth == 0 {
                return None;
            }
            let (inner, info) = self.headers().nth((inner as usize).checked_sub(1)?)?;
            let is_composite = [KIND_STRUCT, KIND_UNION].contains(&kind(info));
            is_composite.then(|| self.offset_in(inner, field, depth - 1))?.map(|inside| offset + inside)
        })
    }

    /// Where each type's header is, and its second word, in the order of their numbers, from 1 on.
    fn headers(&self) -> impl Iterator<Item = (usize, u32)> {
        let mut next = Some(0);
        std::iter::from_fn(move || {
            let at = next?;
            let info = read_u32(self.types, at + 4)?;
            next = payload(kind(info), count(info)).map(|payload| at + 12 + payload);
            Some((at, info))
        })
    }

    fn is_named(&self, offset: u32, name: &str) -> bool {
        let tail = self.strings.get(offset as usize..).unwrap_or_default();
        tail.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
    }
}

/// A type's kind, from the second word of its header.
const fn kind(info: u32) -> u32 {
    info >> 24 & 31
}

/// How many members it has.
const fn count(info: u32) -> usize {
    info as usize & 0xffff
}

/// Bytes that follow a type's header of 12 bytes; `None` for a kind that this does not know.
fn payload(kind: u32, count: usize) -> Option<usize> {
    Some(match kind {
        // PTR, FWD, TYPEDEF, VOLATILE, CONST, RESTRICT, FUNC, FLOAT, TYPE_TAG
        2 | 7..=12 | 16 | 18 => 0,
        // INT, VAR, DECL_TAG
        1 | 14 | 17 => 4,
        // ARRAY
        3 => 12,
        // ENUM, FUNC_PROTO
        6 | 13 => count * 8,
        // STRUCT, UNION, DATASEC, ENUM64
        KIND_STRUCT | KIND_UNION | 15 | 19 => count * 12,
        _ => return None,
    })
}

fn read_u32(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(data.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "the sample has a few bytes")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// BTF of `struct other { u64 a, b; }; struct task_struct { ...; utask at byte 16 }`, with an INT before them.
    fn sample() -> Vec<u8> {
        let strings = b"\0other\0a\0task_struct\0utask\0";
        let name = |text: &str| {
            let needle = [text.as_bytes(), b"\0"].concat();
            strings.windows(needle.len()).position(|window| window == needle).unwrap() as u32
        };
        let types: Vec<u32> = [
            vec![0, 1 << 24, 8, 64],
            vec![name("other"), KIND_STRUCT << 24 | 1, 16, name("a"), 1, 0],
            vec![name("task_struct"), KIND_STRUCT << 24 | 2, 24, name("a"), 1, 0, name("utask"), 1, 128],
        ]
        .concat();
        let types: Vec<u8> = types.into_iter().flat_map(u32::to_le_bytes).collect();
        let lengths = [24, 0, types.len() as u32, types.len() as u32, strings.len() as u32];
        let header = [0x0001_eb9f].into_iter().chain(lengths).flat_map(u32::to_le_bytes);
        header.chain(types).chain(strings.iter().copied()).collect()
    }

    #[test]
    fn a_field_is_found_by_its_names() {
        let data = sample();
        let btf = Btf::parse(&data).unwrap();
        assert_eq!(btf.offset("task_struct", "utask"), Some(16));
        assert_eq!(btf.offset("task_struct", "nothing"), None);
        assert_eq!(btf.offset("nothing", "utask"), None);
    }

    #[test]
    fn this_kernel_tells_where_return_instances_and_tasks_fields_are() {
        let vmlinux = Path::new("/sys/kernel/btf/vmlinux");
        if vmlinux.exists() {
            assert!(ReturnInstanceOffsets::read(vmlinux).unwrap().is_some());
            assert!(BreakOffsets::read(vmlinux).unwrap().is_some_and(|offsets| offsets.mm_brk != 0));
            assert!(TaskOffsets::read(vmlinux).unwrap().is_some());
            assert!(MappingOffsets::read(vmlinux).unwrap().is_some_and(|offsets| offsets.vma_file != 0));
        }
    }

    proptest! {
        #[test]
        fn damaged_type_information_is_no_danger(at in 0usize..120, byte: u8, length in 0usize..150) {
            let mut data = sample();
            data.truncate(length);
            if let Some(place) = data.get_mut(at) {
                *place = byte;
            }
            if let Some(btf) = Btf::parse(&data) {
                let _ = btf.offset("task_struct", "utask");
            }
        }
    }
}
