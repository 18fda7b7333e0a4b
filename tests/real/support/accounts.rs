//! Accounting of each call site: allocated and live memory. The figures of a fixture and of a report are reduced to the same
//! form, to compare them for equality.

use std::collections::BTreeMap;

use jjleak::render::json::{Document, StackDocument, TotalsDocument};

/// Bytes and objects of one call site.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) live_bytes: u64,
    pub(crate) live_objects: u64,
    pub(crate) allocated_bytes: u64,
    pub(crate) allocated_objects: u64,
}

impl Account {
    pub(crate) fn add(&mut self, stack: &StackDocument) {
        self.live_bytes += stack.live.bytes;
        self.live_objects += stack.live.objects;
        self.allocated_bytes += stack.allocated.bytes;
        self.allocated_objects += stack.allocated.objects;
    }
}

/// Accounts by the name of the function that called the allocator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Accounts {
    pub(crate) sites: BTreeMap<String, Account>,
    pub(crate) unknown_frees: u64,
}

impl Accounts {
    /// Parses the output of a fixture: `site NAME live BYTES OBJECTS allocated BYTES OBJECTS`, `unknown_frees NUMBER`. Other
    /// lines are skipped.
    pub(crate) fn parse<'a>(lines: impl IntoIterator<Item = &'a str>) -> Self {
        let mut accounts = Self::default();
        for line in lines {
            let words: Vec<_> = line.split(' ').collect();
            let number = |index: usize| words[index].parse::<u64>().unwrap();
            match words[..] {
                ["site", name, "live", _, _, "allocated", _, _] => {
                    let account = Account {
                        live_bytes: number(3),
                        live_objects: number(4),
                        allocated_bytes: number(6),
                        allocated_objects: number(7),
                    };
                    accounts.sites.insert(name.to_owned(), account);
                }
                ["unknown_frees", _] => accounts.unknown_frees = number(1),
                _ => {}
            }
        }
        accounts
    }

    /// Reduces a report.
    pub(crate) fn of(report: &Document) -> Self {
        let mut accounts = Self { unknown_frees: report.unknown_frees, ..Self::default() };
        for stack in &report.stacks {
            accounts.sites.entry(call_site(stack).to_owned()).or_default().add(stack);
        }
        accounts
    }

    /// Live bytes and objects of all sites.
    pub(crate) fn live(&self) -> TotalsDocument {
        let accounts = self.sites.values();
        TotalsDocument {
            bytes: accounts.clone().map(|account| account.live_bytes).sum(),
            objects: accounts.map(|account| account.live_objects).sum(),
        }
    }

    /// Allocated bytes and objects of all sites.
    pub(crate) fn allocated(&self) -> TotalsDocument {
        let accounts = self.sites.values();
        TotalsDocument {
            bytes: accounts.clone().map(|account| account.allocated_bytes).sum(),
            objects: accounts.map(|account| account.allocated_objects).sum(),
        }
    }

    /// Fails unless the report has the same figures: by call site, in total, and to the byte.
    pub(crate) fn assert_reported(&self, report: &Document) {
        assert_eq!(Self::of(report), *self, "the report (left) is not what the program recorded (right)");
        assert_eq!(report.live, self.live());
        assert_eq!(report.allocated, self.allocated());
    }
}

/// The function that called the allocator: the first frame is the allocation function itself.
pub(crate) fn call_site(stack: &StackDocument) -> &str {
    let mut functions = stack.frames.iter().filter(|frame| !frame.inlined);
    functions.nth(1).map_or("", |frame| &frame.symbol)
}

/// Losses in a report.
pub(crate) fn losses(report: &Document) -> BTreeMap<&str, u64> {
    report.lost.iter().filter(|(_, count)| **count > 0).map(|(name, count)| (name.as_str(), *count)).collect()
}

/// Fails if a report has any loss.
pub(crate) fn assert_nothing_lost(report: &Document) {
    assert_eq!(losses(report), BTreeMap::new(), "something was lost");
}
