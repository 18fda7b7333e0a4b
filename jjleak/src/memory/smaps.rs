//! Mappings with their resident memory: `/proc/PID/smaps` (proc(5)).

use std::ops::Range;

use super::Kind;

/// One mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Area {
    /// Addresses.
    pub range: Range<u64>,
    /// True if writes are visible to other processes.
    pub shared: bool,
    /// Path of the file or name in brackets; may be empty.
    pub name: String,
    /// Resident bytes. Rss leaves out pages of hugetlbfs.
    pub resident: u64,
    /// Resident bytes, each page divided by the number of processes that map it.
    pub proportional: u64,
    /// Bytes in swap.
    pub swapped: u64,
    /// Resident bytes in huge pages.
    pub huge: u64,
}

/// Places of shared memory: `memfd_create(2)`, shmget(2), `shm_overview(7)`, shared anonymous memory.
const SHARED_MEMORY: &[&str] = &["/memfd:", "/SYSV", "/dev/shm/", "/dev/zero", "[anon_shmem:"];

impl Area {
    /// Use of the mapping as far as the kernel knows it.
    #[must_use]
    pub fn kind(&self) -> Kind {
        let name = self.name.as_str();
        match name {
            "[heap]" => Kind::Brk,
            "[stack]" => Kind::ThreadStacks,
            "" if self.shared => Kind::Shared,
            "" => Kind::Anonymous,
            _ if SHARED_MEMORY.iter().any(|place| name.starts_with(place)) => Kind::Shared,
            _ if name.starts_with("[anon:") => Kind::Anonymous,
            _ if name.starts_with('[') => Kind::Other,
            _ if name.starts_with('/') => Kind::File,
            _ => Kind::Unknown,
        }
    }
}

/// Parses the text of `smaps`. On failure, returns the first malformed line.
pub fn parse_smaps(text: &str) -> Result<Vec<Area>, &str> {
    let mut areas: Vec<Area> = Vec::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let first = words.next().unwrap_or_default();
        if !first.ends_with(':') {
            areas.push(header(line).ok_or(line)?);
            continue;
        }
        let area = areas.last_mut().ok_or(line)?;
        let sum = match first {
            "Rss:" => &mut area.resident,
            "Pss:" => &mut area.proportional,
            "Swap:" => &mut area.swapped,
            "AnonHugePages:" | "ShmemPmdMapped:" | "FilePmdMapped:" => &mut area.huge,
            _ => continue,
        };
        let kilobytes = words.next().and_then(|number| number.parse::<u64>().ok());
        let bytes = kilobytes.and_then(|kilobytes| kilobytes.checked_mul(1024));
        *sum = bytes.and_then(|bytes| sum.checked_add(bytes)).ok_or(line)?;
    }
    Ok(areas)
}

fn header(line: &str) -> Option<Area> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let range = u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?;
    let shared = words.next()?.ends_with('s');
    let name = words.nth(3).unwrap_or_default().trim_start().to_owned();
    (range.start < range.end).then_some(Area {
        range,
        shared,
        name,
        resident: 0,
        proportional: 0,
        swapped: 0,
        huge: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind_of(line: &str) -> Kind {
        parse_smaps(line).unwrap()[0].kind()
    }

    #[test]
    fn figures_belong_to_the_mapping_above_them() {
        let text = "1000-3000 rw-p 00000000 00:00 0 \nRss: 8 kB\nPss: 4 kB\nSwap: 4 kB\nVmFlags: rd wr\n\
                    4000-5000 r--p 00000000 08:01 42       /lib/a b.so (deleted)\nRss: 4 kB\n";
        let areas = parse_smaps(text).unwrap();
        assert_eq!((areas[0].resident, areas[0].proportional, areas[0].swapped), (8192, 4096, 4096));
        assert_eq!((areas[1].name.as_str(), areas[1].resident), ("/lib/a b.so (deleted)", 4096));
    }

    #[test]
    fn the_kernels_names_decide_on_kinds() {
        assert_eq!(kind_of("1000-2000 rw-p 0 00:00 0 "), Kind::Anonymous);
        assert_eq!(kind_of("1000-2000 rw-p 0 00:00 0      [anon:arena]"), Kind::Anonymous);
        assert_eq!(kind_of("1000-2000 rw-p 0 00:00 0      [heap]"), Kind::Brk);
        assert_eq!(kind_of("1000-2000 rw-p 0 00:00 0      [stack]"), Kind::ThreadStacks);
        assert_eq!(kind_of("1000-2000 r-xp 0 00:00 0      [vdso]"), Kind::Other);
        assert_eq!(kind_of("1000-2000 rw-s 0 00:01 7      /memfd:x (deleted)"), Kind::Shared);
        assert_eq!(kind_of("1000-2000 rw-p 0 08:01 7      /usr/lib/x"), Kind::File);
        assert_eq!(kind_of("1000-2000 rw-p 0 00:0e 7      anon_inode:x"), Kind::Unknown);
    }

    #[test]
    fn malformed_lines_are_named() {
        assert_eq!(parse_smaps("Rss: 4 kB"), Err("Rss: 4 kB"));
        assert_eq!(parse_smaps("2000-1000 rw-p 0 00:00 0 "), Err("2000-1000 rw-p 0 00:00 0 "));
    }
}
