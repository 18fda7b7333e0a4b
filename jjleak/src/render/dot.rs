//! A call graph for Graphviz: functions as boxes, calls as arrows, each with the memory that was allocated through it, as in
//! `jeprof --dot`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::io::{self, Write};

use super::label::{NO_STACK, label};
use super::units;
use super::{Options, Value};
use crate::profile::{Profile, SourceKind, StackProfile};

/// Limits of the size of a call graph.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GraphLimits {
    /// Smallest share of all memory of a function that is shown.
    pub node_fraction: f64,
    /// Smallest share of all memory of a call that is shown.
    pub edge_fraction: f64,
    /// Maximum number of functions.
    pub max_nodes: usize,
}

impl Default for GraphLimits {
    /// Defaults of `jeprof`.
    fn default() -> Self {
        Self { node_fraction: 0.005, edge_fraction: 0.001, max_nodes: 80 }
    }
}

/// Smallest and largest size of the text of a function, in points: by its own memory.
const FONT_POINTS: (f64, f64) = (8., 50.);
/// Largest width of an arrow in points.
const PEN_POINTS: f64 = 8.;
/// Characters of a line in a box.
const LINE: usize = 60;

/// Functions with their own memory and that of their callees.
#[derive(Debug, Default, PartialEq, Eq)]
struct Graph {
    names: Vec<String>,
    own: Vec<u64>,
    through: Vec<u64>,
    calls: BTreeMap<(usize, usize), u64>,
    total: u64,
}

impl Graph {
    fn of(profile: &Profile, value: Value) -> Self {
        let mut graph = Self::default();
        let mut indices: HashMap<String, usize> = HashMap::new();
        for stack in profile.stacks.iter().filter(|stack| !stack.live.is_nothing()) {
            let weight = value.of(stack.live);
            let path: Vec<usize> =
                names(stack, profile.coverage.source).map(|name| graph.index(&mut indices, name)).collect();
            graph.add(&path, weight);
        }
        graph
    }

    fn index(&mut self, indices: &mut HashMap<String, usize>, name: String) -> usize {
        *indices.entry(name).or_insert_with_key(|name| {
            self.names.push(name.clone());
            self.own.push(0);
            self.through.push(0);
            self.names.len() - 1
        })
    }

    /// Adds a stack, leaf first. Recursion counts once.
    fn add(&mut self, path: &[usize], weight: u64) {
        self.total = self.total.saturating_add(weight);
        if let Some(leaf) = path.first() {
            self.own[*leaf] = self.own[*leaf].saturating_add(weight);
        }
        for function in path.iter().collect::<BTreeSet<_>>() {
            self.through[*function] = self.through[*function].saturating_add(weight);
        }
        let calls: BTreeSet<_> = path.windows(2).map(|pair| (pair[1], pair[0])).collect();
        for call in calls {
            let sum = self.calls.entry(call).or_default();
            *sum = sum.saturating_add(weight);
        }
    }

    /// The functions that are shown, those with the most memory first.
    fn shown(&self, limits: GraphLimits) -> Vec<usize> {
        let mut shown: Vec<usize> = (0..self.names.len()).collect();
        shown.retain(|function| share(self.through[*function], self.total) >= limits.node_fraction);
        shown.sort_by_key(|function| (Reverse(self.through[*function]), &self.names[*function]));
        shown.truncate(limits.max_nodes);
        shown
    }
}

/// Names of a stack's functions, leaf first, without the allocator's: memory is the caller's own, as in `jeprof`.
fn names(stack: &StackProfile, source: SourceKind) -> impl Iterator<Item = String> {
    let nothing = stack.frames.is_empty().then(|| NO_STACK.to_owned());
    stack.callers(source).map(|frame| label(frame).into_owned()).chain(nothing)
}

/// Writes the graph.
pub(super) fn write(profile: &Profile, options: &Options, out: &mut impl Write) -> io::Result<()> {
    let graph = Graph::of(profile, options.value);
    let shown = graph.shown(options.graph);
    let places: HashMap<usize, usize> =
        shown.iter().enumerate().map(|(place, index)| (*index, place)).collect();
    let amount = |number: u64| match options.value {
        Value::Bytes => units::humane_bytes(number).unwrap_or_else(|| format!("{number} bytes")),
        Value::Objects => units::grouped(number),
    };
    writeln!(out, "digraph {} {{", quoted(&profile.process.to_string()))?;
    writeln!(out, "node [shape=box, fontname=\"sans-serif\"];")?;
    writeln!(out, "edge [fontname=\"sans-serif\", fontsize=10];")?;
    let hidden = graph.names.len() - shown.len();
    let mut legend = format!(
        "{}\n{} {}",
        profile.process,
        amount(graph.total),
        super::live_or_allocated(&profile.coverage)
    );
    if hidden > 0 {
        let percent = options.graph.node_fraction * 100.;
        let _ = write!(
            legend,
            "\n{hidden} functions left out: below {percent} %, or more than {}",
            options.graph.max_nodes
        );
    }
    writeln!(out, "legend [shape=note, label={}];", quoted(&legend))?;
    for (place, function) in shown.iter().enumerate() {
        let (own, through) = (graph.own[*function], graph.through[*function]);
        let percent = |number| share(number, graph.total) * 100.;
        let mut text = wrapped(&graph.names[*function]);
        let _ = write!(text, "\n{} ({:.1} %)", amount(own), percent(own));
        if through != own {
            let _ = write!(text, "\nof {} ({:.1} %)", amount(through), percent(through));
        }
        let points = FONT_POINTS.0 + (FONT_POINTS.1 - FONT_POINTS.0) * share(own, graph.total).sqrt();
        writeln!(out, "n{place} [label={}, fontsize={points:.1}];", quoted(&text))?;
    }
    for ((caller, callee), weight) in &graph.calls {
        let share = share(*weight, graph.total);
        if let (Some(from), Some(to)) = (places.get(caller), places.get(callee))
            && share >= options.graph.edge_fraction
        {
            let width = (PEN_POINTS * share).max(0.5);
            writeln!(out, "n{from} -> n{to} [label={}, penwidth={width:.1}];", quoted(&amount(*weight)))?;
        }
    }
    writeln!(out, "}}")
}

#[expect(clippy::cast_precision_loss, reason = "a share has no use for more than 53 bits")]
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0. } else { part as f64 / whole as f64 }
}

/// A name in lines, divided where it can be.
fn wrapped(name: &str) -> String {
    let mut lines = String::new();
    let mut length = 0;
    for part in name.split_inclusive([' ', ',', ':', '.', '/']) {
        if length > 0 && length + part.chars().count() > LINE {
            lines.push('\n');
            length = 0;
        }
        lines.push_str(part);
        length += part.chars().count();
    }
    lines
}

/// A string of the language (<https://graphviz.org/doc/info/lang.html>). A line break is `\n`; no other escape of labels has a meaning.
fn quoted(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("\"{escaped}\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::sample;

    fn dot(profile: &Profile, options: &Options) -> String {
        let mut out = Vec::new();
        write(profile, options, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn sample_profile() {
        insta::assert_snapshot!(dot(&sample::profile(), &sample::options()));
    }

    #[test]
    fn recursion_counts_once() {
        let mut graph = Graph {
            names: vec!["a".into(), "b".into()],
            own: vec![0; 2],
            through: vec![0; 2],
            ..Graph::default()
        };
        graph.add(&[0, 1, 0, 1, 0], 10);
        assert_eq!((graph.own, graph.through, graph.total), (vec![10, 0], vec![10, 10], 10));
        assert_eq!(graph.calls, BTreeMap::from([((0, 1), 10), ((1, 0), 10)]));
    }

    #[test]
    fn small_functions_are_left_out_and_counted() {
        let graph = GraphLimits { node_fraction: 0.9, edge_fraction: 0., max_nodes: 1 };
        let text = dot(&sample::profile(), &Options { graph, ..sample::options() });
        let functions = text.lines().filter(|line| line.starts_with('n') && line.contains("[label"));
        assert_eq!(functions.count(), 1, "{text}");
        assert!(text.contains("functions left out"), "{text}");
    }

    #[test]
    fn names_cannot_break_out_of_their_string() {
        assert_eq!(quoted("a\"]; x\\"), "\"a\\\"]; x\\\\\"");
        assert_eq!(quoted("a\nb"), "\"a\\nb\"");
    }

    #[test]
    fn long_names_are_wrapped_where_they_can_be() {
        let name = format!("{}::{}", "a".repeat(50), "b".repeat(50));
        assert_eq!(wrapped(&name).lines().count(), 2);
        assert_eq!(wrapped(&"c".repeat(200)).lines().count(), 1);
    }
}
