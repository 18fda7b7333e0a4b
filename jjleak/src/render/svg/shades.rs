//! Colours of changes: red grew, blue shrank, stronger for larger relative changes. Frames of only one profile have colours of
//! their own.

use inferno::flamegraph::color::Color;

use crate::analyze::Change;

/// Unchanged.
const SAME: Color = Color { r: 0xe4, g: 0xe4, b: 0xe4 };
/// Grew: the weakest and the strongest shade.
const GREW: [Color; 2] = [Color { r: 0xfb, g: 0xd0, b: 0xc4 }, Color { r: 0xf0, g: 0x3c, b: 0x15 }];
/// Shrank: the weakest and the strongest shade.
const SHRANK: [Color; 2] = [Color { r: 0xc9, g: 0xdc, b: 0xf6 }, Color { r: 0x2f, g: 0x79, b: 0xd6 }];
/// Only in the second profile.
const NEW: Color = Color { r: 0xd0, g: 0x2a, b: 0xa8 };
/// Only in the first profile.
const GONE: Color = Color { r: 0x1e, g: 0x9a, b: 0x92 };

/// Entries of the legend.
pub(super) fn legend() -> Vec<(Color, &'static str)> {
    Change::ALL.map(|change| (of(change)[1], change.name())).to_vec()
}

/// Weakest and strongest shade of a change.
pub(super) const fn of(change: Change) -> [Color; 2] {
    match change {
        Change::New => [NEW; 2],
        Change::Grew => GREW,
        Change::Shrank => SHRANK,
        Change::Gone => [GONE; 2],
        Change::Same => [SAME; 2],
    }
}

/// Colour of a frame with these live amounts before and after.
pub(super) fn shade(before: u64, after: u64) -> Color {
    match (before, after) {
        (before, after) if before == after => SAME,
        (0, _) => NEW,
        (_, 0) => GONE,
        (before, after) if after > before => between(GREW, after - before, after),
        (before, after) => between(SHRANK, before - after, before),
    }
}

fn between([weak, strong]: [Color; 2], part: u64, whole: u64) -> Color {
    let mix = |weak: u8, strong: u8| {
        let (weak, strong, part, whole) =
            (i128::from(weak), i128::from(strong), i128::from(part), i128::from(whole));
        // The result lies between two bytes, so it is one.
        u8::try_from(weak + (strong - weak) * part / whole.max(1)).unwrap_or(u8::MAX)
    };
    Color { r: mix(weak.r, strong.r), g: mix(weak.g, strong.g), b: mix(weak.b, strong.b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_red_and_the_stronger_the_more_of_the_frame_it_is() {
        let (weak, strong) = (shade(99, 100), shade(1, 100));
        assert!(weak.r > weak.b && strong.r > strong.b && strong.b < weak.b);
        let shrunk = shade(100, 10);
        assert!(shrunk.b > shrunk.r);
    }

    #[test]
    fn what_is_only_in_one_of_them_has_a_colour_of_its_own() {
        assert_eq!((shade(0, 5), shade(5, 0), shade(5, 5), shade(0, 0)), (NEW, GONE, SAME, SAME));
        assert!(shade(1, u64::MAX).r >= GREW[1].r);
    }
}
