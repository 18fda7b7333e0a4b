//! Native Memory Tracking (`src/hotspot/share/nmt` in the JDK; `-XX:NativeMemoryTracking=summary`): what the JVM counts by category.

use super::{Reader, Reading, Unknown};
use crate::jvm::{Memory, NMT_VARIABLES, Variable};

/// Levels at which categories are counted (`NMT_summary`, `NMT_detail`).
const SUMMARY: u64 = 2;
const DETAIL: u64 = 3;
/// Sizes of a counter: number and bytes, and their peaks in JDK 21 and in later updates of JDK 17.
const COUNTERS: [u64; 2] = [16, 32];
/// Sizes of the sums of mappings: reserved and committed bytes, and a peak.
const MAPPED: [u64; 2] = [16, 24];
/// Maximum number of categories; JDK 11 to 25 have 21 to 28.
const MAX_CATEGORIES: u64 = 64;
/// Category of the memory that all arenas have together.
const ARENAS: &str = "Arena Chunk";

/// Native memory of one purpose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeCategory {
    /// Name, as `jcmd VM.native_memory` has it.
    pub name: String,
    /// Bytes of malloc, arenas left out.
    pub malloc: u64,
    /// Bytes of arenas, which malloc provides.
    pub arena: u64,
    /// Reserved bytes of mappings.
    pub reserved: u64,
    /// Committed bytes of mappings. Of thread stacks, the JVM learns them only when it is asked.
    pub committed: u64,
}

impl NativeCategory {
    /// Bytes that malloc provides.
    #[must_use]
    pub const fn of_malloc(&self) -> u64 {
        self.malloc.saturating_add(self.arena)
    }
}

/// Categories with memory; `None` if the JVM does not count.
pub(super) fn read<M: Memory>(
    reader: &Reader<'_, M>,
    variable: &impl Fn(&str) -> Option<Variable>,
) -> Reading<Option<Vec<NativeCategory>>> {
    let [level, malloc, mapped, old_names, names] = NMT_VARIABLES;
    let variable = |name| variable(name).ok_or(Unknown::Undescribed);
    if !(SUMMARY..=DETAIL).contains(&reader.number(variable(level)?.address, 4)?) {
        return Ok(None);
    }
    let (malloc, mapped) = (variable(malloc)?, variable(mapped)?);
    let names = variable(names).or_else(|_| variable(old_names))?;
    let layout = Layout::of(malloc.size, mapped.size, names.size)?;
    let copy = |from: Variable| {
        let length = usize::try_from(from.size).map_err(|_| Unknown::Implausible)?;
        reader.memory.bytes(from.address, length).ok_or(Unknown::Unreadable)
    };
    layout.categories(&copy(malloc)?, &copy(mapped)?, &copy(names)?, |at| reader.memory.text(at)).map(Some)
}

/// Sizes of the parts of one category.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    count: usize,
    /// Size of a counter: a category has one for blocks and one for arenas.
    counter: usize,
    mapped: usize,
    name: usize,
}

impl Layout {
    /// The layout of variables with these sizes. Each version has one counter more than two for each category, and one entry of
    /// each other variable.
    fn of(malloc: u64, mapped: u64, names: u64) -> Reading<Self> {
        let fitting = COUNTERS.into_iter().filter_map(|counter| {
            let all = malloc.checked_sub(counter)?;
            let count = all / (2 * counter);
            let is_whole = all % (2 * counter) == 0 && (1..=MAX_CATEGORIES).contains(&count);
            let each = |size: u64| size.is_multiple_of(count).then_some(size / count);
            if !is_whole {
                return None;
            }
            let (mapped, name) = (each(mapped)?, each(names)?);
            let is_known = MAPPED.contains(&mapped) && matches!(name, 8 | 16);
            let size = |bytes| usize::try_from(bytes).ok();
            is_known.then_some(Self {
                count: size(count)?,
                counter: size(counter)?,
                mapped: size(mapped)?,
                name: size(name)?,
            })
        });
        let mut fitting = fitting;
        let only = fitting.next().ok_or(Unknown::Undescribed)?;
        if fitting.next().is_some() { Err(Unknown::Implausible) } else { Ok(only) }
    }

    fn categories(
        self,
        malloc: &[u8],
        mapped: &[u8],
        names: &[u8],
        text: impl Fn(u64) -> Option<String>,
    ) -> Reading<Vec<NativeCategory>> {
        let word = |bytes: &[u8], at: usize| {
            let word = bytes.get(at..at + 8)?.try_into().ok()?;
            Some(u64::from_le_bytes(word)).filter(|word| *word < 1 << 47)
        };
        let category = |index: usize| {
            let (blocks, areas) = (index * 2 * self.counter, index * self.mapped);
            // A name for people follows the one in the JDK's source.
            let name = text(word(names, (index + 1) * self.name - 8)?)?;
            Some(NativeCategory {
                name,
                malloc: word(malloc, blocks + 8)?,
                arena: word(malloc, blocks + self.counter + 8)?,
                reserved: word(mapped, areas)?,
                committed: word(mapped, areas + 8)?,
            })
        };
        let mut all =
            (0..self.count).map(category).collect::<Option<Vec<_>>>().ok_or(Unknown::Implausible)?;
        // The bytes of arenas are counted with their categories, too.
        let in_arenas: u64 = all.iter().map(|category| category.arena).sum();
        let chunks = all.iter_mut().find(|category| category.name == ARENAS).ok_or(Unknown::Implausible)?;
        chunks.malloc = chunks.malloc.saturating_sub(in_arenas);
        all.retain(|category| category.of_malloc() > 0 || category.reserved > 0);
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_follows_from_the_sizes_of_the_variables() {
        let layout = |malloc, mapped, names| {
            Layout::of(malloc, mapped, names).map(|it| (it.count, it.counter, it.mapped, it.name))
        };
        // JDK 11, 17, a later update of 17, and 21.
        assert_eq!(layout(688, 336, 168), Ok((21, 16, 16, 8)));
        assert_eq!(layout(880, 432, 216), Ok((27, 16, 16, 8)));
        assert_eq!(layout(1760, 432, 216), Ok((27, 32, 16, 8)));
        assert_eq!(layout(1824, 672, 448), Ok((28, 32, 24, 16)));
        for (malloc, mapped, names) in
            [(0, 0, 0), (688, 336, 167), (688, 337, 168), (700, 336, 168), (16, 0, 0)]
        {
            assert!(layout(malloc, mapped, names).is_err(), "{malloc} {mapped} {names}");
        }
    }

    #[test]
    fn what_arenas_have_counts_with_their_categories() {
        let layout = Layout { count: 2, counter: 16, mapped: 16, name: 8 };
        let bytes = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
        let malloc = bytes(&[3, 300, 2, 50, 1, 70, 0, 0, 0, 0]);
        let mapped = bytes(&[4096, 1024, 0, 0]);
        let text = |at| Some(if at == 1 { "Compiler" } else { ARENAS }.to_owned());
        let found = layout.categories(&malloc, &mapped, &bytes(&[1, 2]), text).unwrap();
        let sums: Vec<_> = found.iter().map(|it| (it.name.as_str(), it.of_malloc(), it.reserved)).collect();
        assert_eq!(sums, [("Compiler", 350, 4096), (ARENAS, 20, 0)]);
        assert_eq!(
            layout.categories(&malloc, &mapped[..8], &bytes(&[1, 2]), text),
            Err(Unknown::Implausible)
        );
        assert_eq!(layout.categories(&malloc, &mapped, &bytes(&[1, 2]), |_| None), Err(Unknown::Implausible));
    }
}
