//! Report of the measurements: stored as JSON and rendered as a page.

use serde::Serialize;

use crate::machine::{Machine, Noise};
use crate::options::Options;
use crate::timings::Figure;

/// Incremented when the meaning of a field changes.
const SCHEMA: u32 = 1;

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    schema: u32,
    tool: String,
    pub(crate) date: String,
    /// True for a short run without meaningful figures.
    pub(crate) quick: bool,
    pub(crate) machine: Machine,
    /// Noise before and after the run.
    pub(crate) noise: Vec<Noise>,
    pub(crate) took_s: f64,
    pub(crate) sections: Vec<Section>,
    #[serde(skip)]
    begun: std::time::Instant,
}

/// Results of a part of the benchmark.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Section {
    pub(crate) title: String,
    /// Description of the method.
    pub(crate) says: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) matrix: Option<Matrix>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) facts: Vec<Fact>,
    /// Reason for missing results.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<String>,
}

/// Figures by tool and workload.
#[derive(Debug, Serialize)]
pub(crate) struct Matrix {
    pub(crate) unit: &'static str,
    pub(crate) workloads: Vec<String>,
    pub(crate) tools: Vec<ToolRow>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ToolRow {
    pub(crate) tool: &'static str,
    /// One per workload.
    pub(crate) figures: Vec<Option<Figure>>,
    /// Reasons for missing figures.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) failures: Vec<String>,
}

/// A single figure.
#[derive(Debug, Serialize)]
pub(crate) struct Fact {
    pub(crate) what: String,
    pub(crate) unit: &'static str,
    pub(crate) figure: Option<Figure>,
    /// Target: maximum of the median.
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

    /// Returns true if other load disturbed the machine.
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

    /// Returns true if the target was met; `None` without figure or target.
    pub(crate) fn is_met(&self) -> Option<bool> {
        Some(self.figure?.median <= self.wanted?)
    }
}

impl Matrix {
    /// Median of a tool for a workload.
    pub(crate) fn median(&self, tool: &str, workload: usize) -> Option<f64> {
        let row = self.tools.iter().find(|row| row.tool == tool)?;
        row.figures.get(workload)?.map(|figure| figure.median)
    }

    /// Overhead of a tool: its median minus that without a tool.
    pub(crate) fn added(&self, tool: &str, workload: usize) -> Option<f64> {
        Some(self.median(tool, workload)? - self.median(crate::tools::UNTRACED, workload)?)
    }
}
