//! Divides the rows of a module into groups, in the layout of the kernel side.

use std::ops::RangeInclusive;

use jjleak_common::unwind::{GROUP_PAGES, Row};

use crate::unwind::ModuleRows;

/// Offsets per word.
const PER_WORD: usize = size_of::<u64>() / size_of::<u16>();

/// The groups of a module.
pub(super) struct Groups<'rows> {
    rows: &'rows [Row],
    pages: &'rows [u32],
}

impl<'rows> Groups<'rows> {
    pub(super) fn of(module: &'rows ModuleRows) -> Self {
        Self { rows: module.rows(), pages: module.pages() }
    }

    /// Number of pages.
    pub(super) fn pages(&self) -> usize {
        self.pages.len().saturating_sub(1)
    }

    /// Number of groups.
    pub(super) fn len(&self) -> usize {
        self.pages().div_ceil(GROUP_PAGES)
    }

    /// Number of words of each group.
    pub(super) fn sizes(&self) -> Vec<u32> {
        let size = |group| {
            let rows = self.rows_of(group);
            self.header_words(group) + (rows.end() - rows.start() + 1) as usize
        };
        // Less than 2^16.
        (0..self.len()).map(|group| u32::try_from(size(group)).unwrap_or(u32::MAX)).collect()
    }

    /// Appends the words of a group.
    pub(super) fn write(&self, group: usize, words: &mut Vec<u64>) {
        let rows = self.rows_of(group);
        let header = self.header_words(group);
        let mut offsets = [0; (GROUP_PAGES / PER_WORD + 1) * PER_WORD];
        for (offset, row) in offsets.iter_mut().zip(self.index_of(group)) {
            // Less than 2^16.
            *offset = u16::try_from(header + (row - rows.start()) as usize).unwrap_or(u16::MAX);
        }
        words.extend(offsets.as_chunks().0[..header].iter().map(|[a, b, c, d]: &[u16; PER_WORD]| {
            u64::from(*a) | u64::from(*b) << 16 | u64::from(*c) << 32 | u64::from(*d) << 48
        }));
        words.extend(self.rows[*rows.start() as usize..=*rows.end() as usize].iter().map(|row| row.0));
    }

    /// Index entries of a group's pages, and the one behind them.
    fn index_of(&self, group: usize) -> &'rows [u32] {
        let first = group * GROUP_PAGES;
        &self.pages[first..=(first + GROUP_PAGES).min(self.pages())]
    }

    /// Rows of a group: from the one valid at its beginning to the last that begins in it.
    fn rows_of(&self, group: usize) -> RangeInclusive<u32> {
        let index = self.index_of(group);
        let (first, last) = (index[0], index[index.len() - 1]);
        first..=last
    }

    fn header_words(&self, group: usize) -> usize {
        self.index_of(group).len().div_ceil(PER_WORD)
    }
}

#[cfg(test)]
mod tests {
    use jjleak_common::unwind::{PAGE_SHIFT, RowKind};
    use proptest::prelude::*;

    use super::*;

    /// Searches as the kernel side does.
    fn find(groups: &[Vec<u64>], pages: usize, relative: u32) -> Option<Row> {
        let page = (relative >> PAGE_SHIFT) as usize;
        let words = groups.get(page / GROUP_PAGES).filter(|_| page < pages)?;
        let offset = |index: usize| (words[index / PER_WORD] >> (16 * (index % PER_WORD)) & 0xffff) as usize;
        let (low, high) = (offset(page % GROUP_PAGES), offset(page % GROUP_PAGES + 1));
        let (mut base, mut count) = (low, high - low + 1);
        for _ in 0..jjleak_common::unwind::SEARCH_STEPS {
            let half = count / 2;
            if Row(words[base + half]).address() <= relative {
                base += half;
            }
            count -= half;
        }
        Some(Row(words[base]))
    }

    fn grouped(module: &ModuleRows) -> Vec<Vec<u64>> {
        let groups = Groups::of(module);
        let written = (0..groups.len()).map(|group| {
            let mut words = Vec::new();
            groups.write(group, &mut words);
            words
        });
        let written: Vec<_> = written.collect();
        let sizes = groups.sizes().into_iter().map(|size| size as usize);
        assert!(sizes.eq(written.iter().map(Vec::len)));
        written
    }

    fn module(addresses: impl IntoIterator<Item = u32>) -> ModuleRows {
        let kinds = [RowKind::Sp, RowKind::Fp, RowKind::None];
        let rows = addresses.into_iter().enumerate().map(|(at, address)| Row::plain(address, kinds[at % 3]));
        ModuleRows::of_rows(rows.collect()).unwrap()
    }

    #[test]
    fn a_group_with_a_row_for_each_byte_fits_its_offsets() {
        let text = 3 * u32::try_from(GROUP_PAGES << PAGE_SHIFT).unwrap();
        let module = module(0..text);
        let groups = grouped(&module);
        assert_eq!(groups.len(), 3);
        for address in (0..text).step_by(13).chain([text - 1]) {
            assert_eq!(find(&groups, module.pages().len() - 1, address), module.find(address.into()));
        }
    }

    proptest! {
        #[test]
        fn rows_are_found_in_groups_as_in_the_module(
            distances in proptest::collection::vec(prop_oneof![1..40u32, 1..5000u32, 30_000..200_000u32], 0..300),
            probes in proptest::collection::vec(any::<u32>(), 50),
        ) {
            let mut addresses = vec![0];
            for distance in distances {
                addresses.push(addresses.last().unwrap() + distance);
            }
            let module = module(addresses.iter().copied());
            let groups = grouped(&module);
            let pages = module.pages().len() - 1;
            let end = addresses.last().unwrap() + 3000;
            let near = addresses.iter().flat_map(|at| [at.saturating_sub(1), *at, at + 1]);
            for address in near.chain(probes.iter().map(|probe| probe % end)) {
                prop_assert_eq!(find(&groups, pages, address), module.find(address.into()));
            }
        }
    }
}
