//! What was measured: the document that is kept as JSON, and that the page is made of.

use serde::Serialize;

use crate::machine::{Machine, Noise};
use crate::options::Options;
use crate::timings::Figure;

/// Changes when fields change their meaning.
const SCHEMA: u32 = 1;

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    schema: u32,
    tool: String,
    pub(crate) date: String,
    /// Little of everything: no figures to keep.
    pub(crate) quick: bool,
    pub(crate) machine: Machine,
    /// Before and after.
    pub(crate) noise: Vec<Noise>,
    pub(crate) took_s: f64,
    pub(crate) sections: Vec<Section>,
    #[serde(skip)]
    begun: std::time::Instant,
}

/// What was measured together.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Section {
    pub(crate) title: String,
    /// What was done, in sentences.
    pub(crate) says: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) matrix: Option<Matrix>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) facts: Vec<Fact>,
    /// Why there is nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<String>,
}

/// Tools by workloads.
#[derive(Debug, Serialize)]
pub(crate) struct Matrix {
    pub(crate) unit: &'static str,
    pub(crate) workloads: Vec<String>,
    pub(crate) tools: Vec<ToolRow>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ToolRow {
    pub(crate) tool: &'static str,
    /// For each workload.
    pub(crate) figures: Vec<Option<Figure>>,
    /// Why there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) failures: Vec<String>,
}

/// A single figure.
#[derive(Debug, Serialize)]
pub(crate) struct Fact {
    pub(crate) what: String,
    pub(crate) unit: &'static str,
    pub(crate) figure: Option<Figure>,
    /// It is to be at most this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) wanted: Option<f64>,
}

impl Report {
    pub(crate) fn begin(options: &Options) -> Self {
        Self {
            schema: SCHEMA,
            tool: format!("jjleak {}", env!("CARGO_PKG_VERSION")),
            date: jiff::Zoned::now().date().to_string(),
            quick: options.quick,
            machine: Machine::describe(),
            noise: vec![Noise::measure()],
            took_s: 0.,
            sections: Vec::new(),
            begun: std::time::Instant::now(),
        }
    }

    pub(crate) fn end(&mut self) {
        self.noise.push(Noise::measure());
        self.took_s = self.begun.elapsed().as_secs_f64();
    }

    /// Whether the machine had other things to do.
    pub(crate) fn is_noisy(&self) -> bool {
        self.noise.iter().any(Noise::is_noisy)
    }
}

impl Section {
    pub(crate) fn failed(name: &str, why: &str) -> Self {
        Self { title: name.to_owned(), failure: Some(format!("{name}: {why}")), ..Self::default() }
    }
}

impl Fact {
    pub(crate) fn new(what: impl Into<String>, unit: &'static str, figure: Option<Figure>) -> Self {
        Self { what: what.into(), unit, figure, wanted: None }
    }

    pub(crate) fn at_most(self, wanted: f64) -> Self {
        Self { wanted: Some(wanted), ..self }
    }

    /// Whether it is what it was to be.
    pub(crate) fn is_met(&self) -> Option<bool> {
        Some(self.figure?.median <= self.wanted?)
    }
}

impl Matrix {
    /// What a tool takes of a workload.
    pub(crate) fn median(&self, tool: &str, workload: usize) -> Option<f64> {
        let row = self.tools.iter().find(|row| row.tool == tool)?;
        row.figures.get(workload)?.map(|figure| figure.median)
    }

    /// What a tool takes more than nothing does.
    pub(crate) fn added(&self, tool: &str, workload: usize) -> Option<f64> {
        Some(self.median(tool, workload)? - self.median(crate::tools::UNTRACED, workload)?)
    }
}
