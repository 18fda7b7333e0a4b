//! Follows the pages that profiled processes touch, for `jjleak growth`.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::RawFd;
use std::path::Path;

use jjleak_common::counter::Counter;
use jjleak_common::fault;
use jjleak_common::process::ImageId;
use jjleak_common::stack::lost_row;

use super::leading_frames::LeadingFrames;
use crate::attach::{Attachment, Drained, Images, Records, now_ns};
use crate::collect::{Collector, CountedStack};
use crate::memory::{Kind, PageState, Pages, ProcessPages, Use, uses_of};
use crate::processes::{Mapping, Pid};
use crate::residency::{Filled, Owner, Part, TouchedPages};
use crate::session::Error;
use crate::snapshot::sums::Counted;
use crate::snapshot::{Frame, FrameKind, Snapshot, StackUse};

/// Bytes whose pages are read at a time: the states of 16,384 pages.
const PIECE: u64 = 64 << 20;
/// Size of a mapping from which on only pages with a fault are looked at: reading the states of all pages of the 15 TiB that
/// `AddressSanitizer` maps takes seconds.
const SPARSE: u64 = 64 << 30;
/// Addresses above belong to the kernel.
const USER_SPACE_END: u64 = 1 << 47;
/// Size of a page on x86-64.
const PAGE: u64 = 4096;
/// Age of a fault after which its page is resident, if it ever was.
const SETTLED_NS: u64 = 1_000_000_000;

/// Name of the use of pages that are not resident any more.
const GONE: &str = "not resident any more";
/// Name of a frame for pages that no fault made resident.
const BY_KERNEL: &str = "[filled by the kernel]";

/// Touched pages of each image; `None` if they are not followed.
pub(super) struct Touched(Option<Followed>);

struct Followed {
    faults: Records<fault::Record>,
    images: HashMap<ImageId, TouchedPages>,
}

impl Touched {
    /// Follows page faults of armed processes if they are `wanted`. The attachment must have been loaded with the same setting.
    pub(super) fn follow(wanted: bool, attachment: &mut Attachment) -> Result<Self, Error> {
        if !wanted {
            return Ok(Self(None));
        }
        Ok(Self(Some(Followed { faults: attachment.page_faults()?, images: HashMap::new() })))
    }

    /// Returns true if page faults are followed.
    pub(super) const fn is_followed(&self) -> bool {
        self.0.is_some()
    }

    /// A descriptor that becomes readable with new faults; `None` if they are not followed.
    pub(super) fn waiting(&self) -> Option<RawFd> {
        self.0.as_ref().map(|followed| followed.faults.descriptor())
    }

    /// Applies pending faults.
    pub(super) fn receive(&mut self) -> Drained {
        self.0.as_mut().map_or(Drained::Empty, Followed::receive)
    }

    /// Notes the pages of an image that are resident now.
    pub(super) fn begin(&mut self, image: ImageId, pid: Pid) {
        let Some(Followed { images, .. }) = &mut self.0 else { return };
        let touched = images.entry(image).or_default();
        // A process that ends meanwhile has no pages.
        let Ok(mappings) = Mapping::all(pid) else { return };
        let Ok(pages) = ProcessPages::open(pid) else { return };
        for range in mappings.into_iter().map(|mapping| mapping.addresses).filter(|range| !is_sparse(range)) {
            let _ = read(&pages, range, |first, states| touched.add_resident(first, states));
        }
    }

    /// Adds resident pages to a snapshot that was just taken.
    pub(super) fn add_to(
        &mut self,
        snapshot: &mut Snapshot,
        collector: &Collector,
        pid: Pid,
    ) -> LeadingFrames {
        let Some(followed) = &mut self.0 else { return LeadingFrames::default() };
        // A process that ends meanwhile has no pages.
        let uses = uses_of(pid).unwrap_or_default();
        let mut stacks = followed.resident(&uses, pid, snapshot);
        let touched = followed.images.entry(snapshot.image).or_default();
        stacks.extend(gone(touched, &stacks));
        *snapshot.counters.entry(Counter::PageTableFull).or_default() += touched.lost();
        let identities = collector.add_counted(snapshot, &stacks);
        let by_kernel = Frame { symbol: BY_KERNEL.to_owned(), kind: FrameKind::Kernel, ..Frame::default() };
        let frame = |name: &str| Frame::of_memory(name.to_owned());
        LeadingFrames::of(identities.into_iter().zip(&stacks), frame, Some(by_kernel))
    }

    /// Drops the pages of images that are over.
    pub(super) fn forget(&mut self, images: &Images) {
        if let Some(followed) = &mut self.0 {
            followed.images.retain(|image, _| images.is_current(*image));
        }
    }
}

impl Followed {
    fn receive(&mut self) -> Drained {
        let Self { faults, images } = self;
        faults.take(|record| images.entry(record.image).or_default().record(record.event()))
    }

    /// Pages that were made resident since the beginning, by use and by who made them so. Forgets those that are not resident any more.
    fn resident(&mut self, uses: &[Use], pid: Pid, snapshot: &Snapshot) -> Vec<CountedStack> {
        let Ok(pages) = ProcessPages::open(pid) else { return Vec::new() };
        let names: Vec<_> = uses.iter().map(name_of).collect();
        let mut sums = BTreeMap::<(Option<u32>, &str), Counted>::new();
        for (part, name) in uses.iter().map(part_of).zip(&names) {
            let is_sparse = is_sparse(&part.range);
            let ranges = match self.images.get(&snapshot.image) {
                Some(touched) if is_sparse => touched.ranges_in(&part.range),
                _ => vec![part.range.clone()],
            };
            for range in ranges {
                let until_ns = now_ns().saturating_sub(SETTLED_NS);
                // A process that ends meanwhile has no pages.
                let _ = read(&pages, range, |first, states| {
                    // The fault on each page that was resident now has been reported.
                    self.receive();
                    let touched = self.images.entry(snapshot.image).or_default();
                    let piece = Part { range: first..first + states.len() as u64 * PAGE, ..part };
                    touched.attribute(&piece, states, |owner| {
                        let (row, time_ns) = match owner {
                            Owner::Stack(row, time_ns) => (Some(row), time_ns),
                            Owner::Nobody if is_sparse => return,
                            Owner::Nobody => (None, snapshot.taken_ns),
                        };
                        sums.entry((row, name)).or_default().add(PAGE, time_ns, &snapshot.instants_ns);
                    });
                    touched.forget_absent(first, states, until_ns);
                });
            }
        }
        let nobody = lost_row(snapshot.image.slot());
        let stack = |((row, name), resident): ((Option<u32>, &str), Counted)| CountedStack {
            row: row.unwrap_or(nobody),
            is_without_stack: row.is_none(),
            of: name.to_owned(),
            used: figures(resident, 0),
        };
        sums.into_iter().map(stack).collect()
    }
}

const fn is_sparse(range: &std::ops::Range<u64>) -> bool {
    range.end - range.start > SPARSE
}

/// Pages that stacks made resident, and that are so no more.
fn gone(touched: &TouchedPages, resident: &[CountedStack]) -> Vec<CountedStack> {
    let mut left: HashMap<u32, u64> = HashMap::new();
    for pages in resident.iter().filter(|pages| !pages.is_without_stack) {
        *left.entry(pages.row).or_default() += pages.used.live.objects;
    }
    let stack = |(row, faults): (u32, u64)| {
        let gone = faults.saturating_sub(left.get(&row).copied().unwrap_or_default());
        let (of, used) = (GONE.to_owned(), figures(Counted::default(), gone));
        (gone > 0).then_some(CountedStack { row, is_without_stack: false, of, used })
    };
    touched.faults().filter_map(stack).collect()
}

/// Figures of resident pages, and of this number of pages that are not resident any more.
fn figures(resident: Counted, gone: u64) -> StackUse {
    let allocated_objects = resident.live.objects + gone;
    StackUse {
        live: resident.live,
        cohorts: resident.cohorts,
        allocated_objects,
        allocated_bytes: allocated_objects * PAGE,
        ..StackUse::default()
    }
}

/// Reads the states of pages in pieces.
fn read(
    pages: &ProcessPages,
    range: std::ops::Range<u64>,
    mut each: impl FnMut(u64, &[PageState]),
) -> std::io::Result<()> {
    let (mut at, mut states) = (range.start, Vec::new());
    // The kernel's page of system calls is at the end of all addresses, and in no page table of the process.
    while at < range.end.min(USER_SPACE_END) {
        let end = range.end.min(at + PIECE);
        states.clear();
        pages.states(at..end, &mut states)?;
        each(at, &states);
        at = end;
    }
    Ok(())
}

fn part_of(of: &Use) -> Part {
    let filled = Filled {
        around: !of.is_anonymous,
        huge: of.has_huge_pages,
        by_zeros: of.is_anonymous && !of.has_swapped,
    };
    Part { range: of.range.clone(), filled }
}

/// Name of a use as a frame.
fn name_of(of: &Use) -> String {
    let name = of.name.as_str();
    match of.kind {
        Kind::MallocLive | Kind::MallocFree | Kind::MallocCache => "malloc".to_owned(),
        Kind::File => {
            let base =
                Path::new(name).file_name().map_or_else(|| name.into(), std::ffi::OsStr::to_string_lossy);
            format!("file {base}")
        }
        Kind::Shared => format!("shared memory {name}").trim_end().to_owned(),
        Kind::Anonymous => format!("anonymous memory {name}").trim_end().to_owned(),
        kind => kind.words().to_owned(),
    }
}
