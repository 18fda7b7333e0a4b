//! The conclusion of a page on a Java heap.

use maud::{Markup, html};

use crate::profile::Profile;
use crate::render::label::printable;
use crate::render::objects::{self, ClassTable, NOTHING_ANNOUNCED};

/// Maximum number of classes.
const CLASSES: usize = 8;

/// Who allocates: the total, why the process grows, the classes that are kept, and those that are allocated most.
pub(super) fn conclusion(profile: &Profile) -> Markup {
    let classes = objects::classes(profile, CLASSES);
    html! {
        section #conclusion {
            h2 { (objects::headline(profile)) }
            @for line in profile.growth.iter().cloned().chain(objects::kept(profile)) {
                p.note { (printable(&line)) }
            }
            @match classes {
                Some(ClassTable { rows, rest }) => {
                    (table(&rows))
                    @if let Some(rest) = rest { p.note { (rest) } }
                }
                None => p.note { (NOTHING_ANNOUNCED) },
            }
        }
    }
}

fn table(rows: &[[String; 5]]) -> Markup {
    let [columns, classes @ ..] = rows else { return Markup::default() };
    let figures = |row: &[String; 5]| [1, 2, 3, 4].map(|column| row[column].clone());
    html! {
        table.classes {
            thead { tr { @for column in figures(columns) { th.number { (column) } } th { (columns[0]) } } }
            tbody {
                @for class in classes {
                    tr { @for figure in figures(class) { td.number { (figure) } } td { code { (class[0]) } } }
                }
            }
        }
    }
}
