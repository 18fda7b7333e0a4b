//! Field offsets in this kernel's structures, from its BTF (Documentation/bpf/btf.rst).

use std::collections::HashMap;
use std::io;

use super::kernel_btf;

/// BTF of the running kernel, unparsed.
pub(super) struct KernelTypes(Vec<u8>);

impl KernelTypes {
    /// Reads the BTF of the running kernel.
    pub(super) fn read() -> io::Result<Self> {
        kernel_btf::read().map(Self)
    }

    /// Parses the BTF; `None` if its format is unknown.
    fn parse(&self) -> Option<Btf<'_>> {
        Btf::parse(&self.0)
    }
}

/// Knowledge of this kernel's structures.
pub(super) enum Structures<'a> {
    Known(Btf<'a>),
    /// The format of the BTF is unknown.
    Unfamiliar,
    /// The kernel has no BTF, or it cannot be read.
    Untold,
}

impl<'a> Structures<'a> {
    /// Parses the BTF; logs the reason if that fails.
    pub(super) fn of(types: &'a io::Result<KernelTypes>) -> Self {
        match types.as_ref().map(KernelTypes::parse) {
            Ok(Some(btf)) => Self::Known(btf),
            Ok(None) => {
                tracing::info!("the kernel's type information (BTF) has an unknown format");
                Self::Unfamiliar
            }
            Err(error) => {
                tracing::info!(%error, "cannot read the kernel's type information (BTF)");
                Self::Untold
            }
        }
    }

    pub(super) const fn known(&self) -> Option<&Btf<'a>> {
        match self {
            Self::Known(btf) => Some(btf),
            Self::Unfamiliar | Self::Untold => None,
        }
    }
}

/// Offsets of the fields that lead to a task's pending return probes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ReturnInstanceOffsets {
    pub(super) task_utask: u64,
    pub(super) utask_return_instances: u64,
    pub(super) stack: u64,
    pub(super) address: u64,
    pub(super) next: u64,
}

impl ReturnInstanceOffsets {
    /// Looks up the offsets; `None` if the kernel's structures differ.
    pub(super) fn find(btf: &Btf<'_>) -> Option<Self> {
        Some(Self {
            task_utask: btf.offset("task_struct", "utask")?,
            utask_return_instances: btf.offset("uprobe_task", "return_instances")?,
            stack: btf.offset("return_instance", "stack")?,
            address: btf.offset("return_instance", "orig_ret_vaddr")?,
            next: btf.offset("return_instance", "next")?,
        })
    }
}

/// Offset in a task of its thread pointer (the FS base); `None` if the kernel's structures differ, as on processors other than
/// x86-64.
pub(super) fn thread_pointer_offset(btf: &Btf<'_>) -> Option<u64> {
    Some(btf.offset("task_struct", "thread")? + btf.offset("thread_struct", "fsbase")?)
}

/// Offsets of the fields that identify a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct TaskOffsets {
    pub(super) tgid: u64,
    pub(super) mm: u64,
    pub(super) signal: u64,
    pub(super) signal_live: u64,
}

impl TaskOffsets {
    /// Looks up the offsets; `None` if the kernel's structures differ.
    pub(super) fn find(btf: &Btf<'_>) -> Option<Self> {
        Some(Self {
            tgid: btf.offset("task_struct", "tgid")?,
            mm: btf.offset("task_struct", "mm")?,
            signal: btf.offset("task_struct", "signal")?,
            // An `atomic_t`: a structure with one counter.
            signal_live: btf.offset("signal_struct", "live")?,
        })
    }
}

/// Offsets of the fields that describe memory mappings.
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
    /// Looks up the offsets; `None` if the kernel's structures differ.
    pub(super) fn find(btf: &Btf<'_>) -> Option<Self> {
        // Since Linux 6.10 there are two fields; before, one of type timespec64, with either name.
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

/// Offsets of the fields that describe the program of an `exec`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ProgramOffsets {
    pub(super) file: u64,
    pub(super) path: u64,
    pub(super) namespaces: NamespaceOffsets,
}

/// Offsets of the fields that lead from a task to the number of its mount namespace; all 0 if unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct NamespaceOffsets {
    pub(super) task_namespaces: u64,
    pub(super) mount_namespace: u64,
    pub(super) number: u64,
}

impl NamespaceOffsets {
    fn find(btf: &Btf<'_>) -> Option<Self> {
        Some(Self {
            task_namespaces: btf.offset("task_struct", "nsproxy")?,
            mount_namespace: btf.offset("nsproxy", "mnt_ns")?,
            number: btf.offset("mnt_namespace", "ns")? + btf.offset("ns_common", "inum")?,
        })
    }
}

impl ProgramOffsets {
    /// Looks up the offsets; `None` if the kernel's structures differ.
    pub(super) fn find(btf: &Btf<'_>) -> Option<Self> {
        Some(Self {
            file: btf.offset("linux_binprm", "file")?,
            path: btf.offset("linux_binprm", "interp")?,
            namespaces: NamespaceOffsets::find(btf).unwrap_or_default(),
        })
    }
}

/// Offsets of the fields that lead to a process's program break.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct BreakOffsets {
    pub(super) task_mm: u64,
    pub(super) mm_brk: u64,
}

impl BreakOffsets {
    /// Looks up the offsets; `None` if the kernel's structures differ.
    pub(super) fn find(btf: &Btf<'_>) -> Option<Self> {
        Some(Self { task_mm: btf.offset("task_struct", "mm")?, mm_brk: btf.offset("mm_struct", "brk")? })
    }
}

/// A BTF blob.
pub(super) struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Offset of each type's header, in order of type ID, starting at 1.
    headers: Vec<u32>,
    /// Offset of the header of each named structure, the first if there are several.
    structures: HashMap<&'a [u8], usize>,
}

const MAGIC: u16 = 0xeb9f;
/// Size of a type's header in bytes.
const HEADER_BYTES: usize = 12;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
/// Maximum nesting depth of anonymous structures; `mm_struct` has one level.
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
        let mut btf = Self {
            types: data.get(types..types.checked_add(types_length)?)?,
            strings: data.get(strings..strings.checked_add(strings_length)?)?,
            headers: Vec::new(),
            structures: HashMap::new(),
        };
        btf.look_through();
        Some(btf)
    }

    /// Indexes all types, up to the first of an unknown kind.
    fn look_through(&mut self) {
        let mut at = 0;
        while let Some(info) = read_u32(self.types, at + 4)
            && let Ok(header) = u32::try_from(at)
        {
            self.headers.push(header);
            if kind(info) == KIND_STRUCT
                && let Some(name) = read_u32(self.types, at).map(|name| self.text(name))
            {
                self.structures.entry(name).or_insert(at);
            }
            let Some(payload) = payload(kind(info), count(info)) else { break };
            at += HEADER_BYTES + payload;
        }
    }

    /// Byte offset of a field of a structure, or of an anonymous structure within it.
    fn offset(&self, structure: &str, field: &str) -> Option<u64> {
        self.offset_in(*self.structures.get(structure.as_bytes())?, field, MAX_NESTED)
    }

    /// Byte offset of a field of the structure or union whose header is at `at`.
    fn offset_in(&self, at: usize, field: &str, depth: u32) -> Option<u64> {
        let info = read_u32(self.types, at + 4)?;
        // If the top bit is set (`kind_flag`), only the low 24 bits of a member's offset are the offset.
        let mask = if info >> 31 == 1 { 0x00ff_ffff } else { u32::MAX };
        (0..count(info)).find_map(|index| {
            let member = at + HEADER_BYTES + index * 12;
            let (name, inner) = (read_u32(self.types, member)?, read_u32(self.types, member + 4)?);
            let offset = u64::from((read_u32(self.types, member + 8)? & mask) / 8);
            let name = self.text(name);
            if name == field.as_bytes() {
                return Some(offset);
            }
            if !name.is_empty() || depth == 0 {
                return None;
            }
            let inner = *self.headers.get((inner as usize).checked_sub(1)?)? as usize;
            let info = read_u32(self.types, inner + 4)?;
            let is_composite = [KIND_STRUCT, KIND_UNION].contains(&kind(info));
            is_composite.then(|| self.offset_in(inner, field, depth - 1))?.map(|inside| offset + inside)
        })
    }

    /// The NUL-terminated string at an offset, without the NUL.
    fn text(&self, offset: u32) -> &'a [u8] {
        let tail = self.strings.get(offset as usize..).unwrap_or_default();
        tail.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

/// Kind of a type, from the second word of its header.
const fn kind(info: u32) -> u32 {
    info >> 24 & 31
}

/// Number of members of a type.
const fn count(info: u32) -> usize {
    info as usize & 0xffff
}

/// Number of bytes after a type's header of 12 bytes; `None` for an unknown kind.
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
    fn this_kernel_reveals_where_return_instances_and_tasks_fields_are() {
        if let Ok(types) = KernelTypes::read() {
            let btf = types.parse().unwrap();
            assert!(ReturnInstanceOffsets::find(&btf).is_some());
            assert!(BreakOffsets::find(&btf).is_some_and(|offsets| offsets.mm_brk != 0));
            assert!(TaskOffsets::find(&btf).is_some());
            assert!(MappingOffsets::find(&btf).is_some_and(|offsets| offsets.vma_file != 0));
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
