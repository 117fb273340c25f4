//! Results as data: rows for tables and goals, and one JSON object per run.

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::fs;
use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::error::BenchError;
use crate::host::{Machine, Priority};
use crate::schedulers::System;

/// The subject of a row: its name in results and on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "&'static str")]
pub(crate) enum Subject {
    /// A runtime.
    Runtime(System),
    /// A carrier of messages between processes: a [`Carrier`](crate::messages::Carrier).
    Carrier {
        /// Its name on the command line and in results.
        name: &'static str,
        /// Its label in tables.
        label: &'static str,
    },
    /// A calculation or a simulation, not a measurement.
    Model {
        /// Its name in results.
        name: &'static str,
        /// Its label in tables.
        label: &'static str,
    },
}

impl Subject {
    /// Returns the name on the command line and in results.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Runtime(system) => system.name(),
            Self::Carrier { name, .. } | Self::Model { name, .. } => name,
        }
    }

    /// Returns the label of rows in tables.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Runtime(system) => system.label(),
            Self::Carrier { label, .. } | Self::Model { label, .. } => label,
        }
    }
}

impl From<System> for Subject {
    fn from(system: System) -> Self {
        Self::Runtime(system)
    }
}

impl From<Subject> for &'static str {
    fn from(subject: Subject) -> Self {
        subject.name()
    }
}

impl PartialEq<System> for Subject {
    fn eq(&self, system: &System) -> bool {
        *self == Self::Runtime(*system)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One case of one system: settings, results, and the samples behind them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Row {
    /// The system that was measured.
    pub(crate) system: Subject,
    /// The measurement, such as `reaction` or `pending`.
    pub(crate) case: &'static str,
    /// The settings, with units in the keys.
    pub(crate) parameters: Map<String, Value>,
    /// The results, with units in the keys; empty if the case failed.
    pub(crate) figures: Map<String, Value>,
    /// Why there are no results.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<String>,
    /// Raw samples in nanoseconds, in the order in which they were taken.
    pub(crate) samples_ns: BTreeMap<&'static str, Vec<u64>>,
}

impl Row {
    /// Creates a row without figures.
    pub(crate) fn new(system: impl Into<Subject>, case: &'static str) -> Self {
        Self {
            system: system.into(),
            case,
            parameters: Map::new(),
            figures: Map::new(),
            failure: None,
            samples_ns: BTreeMap::new(),
        }
    }

    /// Sets a parameter.
    pub(crate) fn parameter(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.parameters.insert(key.to_owned(), value.into());
        self
    }

    /// Sets a figure.
    pub(crate) fn with_figure(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.figures.insert(key.to_owned(), value.into());
        self
    }

    /// Returns a figure, if the row has it.
    pub(crate) fn figure(&self, key: &str) -> Option<f64> {
        self.figures.get(key)?.as_f64()
    }

    /// Returns a parameter that is a whole number.
    pub(crate) fn number(&self, key: &str) -> Option<u64> {
        self.parameters.get(key)?.as_u64()
    }

    /// Returns a parameter that is a text; it is empty if there is none.
    pub(crate) fn text(&self, key: &str) -> &str {
        self.parameters.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    /// Returns the number of samples behind the figures.
    pub(crate) fn samples(&self) -> u64 {
        self.figures.get("samples").and_then(Value::as_u64).unwrap_or(0)
    }

    /// Tells whether this is `system`'s row of `case` in which `key` was set to `value`.
    pub(crate) fn is(&self, system: System, case: &str, key: &str, value: u32) -> bool {
        self.system == system && self.case == case && self.number(key) == Some(value.into())
    }
}

/// Finds `system`'s row of `case` in which `key` was set to `value`.
pub(crate) fn find<'a>(
    rows: &'a [Row],
    system: System,
    case: &str,
    (key, value): (&str, u32),
) -> Option<&'a Row> {
    rows.iter().find(|row| row.is(system, case, key, value))
}

/// The outcome of a measurement.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// The rows, in the order in which cases were asked for.
    pub(crate) rows: Vec<Row>,
    /// How the client was scheduled, if one began.
    pub(crate) priority: Option<Priority>,
}

/// All of one run, as one JSON object.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// The machine of the run.
    pub(crate) machine: Machine,
    /// The command line.
    pub(crate) command: String,
    /// The seed of all randomness.
    pub(crate) seed: u64,
    /// How the client was scheduled.
    pub(crate) client_priority: Option<String>,
    /// All rows.
    pub(crate) rows: Vec<Row>,
    /// The goals that were checked, if any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) goals: Vec<Value>,
}

impl Report {
    /// Describes this run.
    pub(crate) fn new(machine: Machine, seed: u64, outcome: Outcome) -> Self {
        let command = env::args().collect::<Vec<_>>().join(" ");
        let client_priority = outcome.priority.map(|priority| priority.to_string());
        Self { machine, command, seed, client_priority, rows: outcome.rows, goals: Vec::new() }
    }

    /// Writes this run to a file.
    ///
    /// # Errors
    /// [`BenchError::File`] if the file cannot be written.
    pub(crate) fn write(&self, path: &Path) -> Result<(), BenchError> {
        let error = |source| BenchError::File { path: path.to_owned(), source };
        let mut text = serde_json::to_string(self).map_err(|e| error(e.into()))?;
        text.push('\n');
        fs::write(path, text).map_err(error)
    }
}
