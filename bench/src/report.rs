//! Results, as tables for people and as JSON for comparisons.

use std::fmt;
use std::path::Path;

use anyhow::Result;
use serde::Serialize;
use serde_json::{Value, json};

use crate::database::PostgresFacts;
use crate::machine::Machine;

#[derive(Serialize)]
pub struct Report {
    name: &'static str,
    about: String,
    rows: Vec<Row>,
    ratios: Vec<Ratio>,
    notes: Vec<String>,
}

/// The metrics of one subject.
#[derive(Serialize)]
pub struct Row {
    what: String,
    metrics: Vec<Metric>,
}

#[derive(Serialize)]
struct Metric {
    name: &'static str,
    median: f64,
    samples: Vec<f64>,
}

/// The ratio of two subjects, or a number that has a target.
#[derive(Serialize)]
struct Ratio {
    what: String,
    value: f64,
    target: Target,
    #[serde(skip_serializing_if = "Option::is_none")]
    met: Option<bool>,
}

#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    AtLeast(f64),
    AtMost(f64),
    None,
}

impl Report {
    pub fn new(name: &'static str, about: String) -> Self {
        Self { name, about, rows: Vec::new(), ratios: Vec::new(), notes: Vec::new() }
    }

    pub fn row(&mut self, what: impl Into<String>) -> &mut Row {
        self.rows.push(Row { what: what.into(), metrics: Vec::new() });
        self.rows.last_mut().expect("a row was just added")
    }

    /// Compares round by round, because the speed of the machine varies between rounds, and uses the median.
    pub fn ratio(&mut self, what: impl Into<String>, of: &[f64], to: &[f64], target: Target) {
        let ratios: Vec<f64> = of.iter().zip(to).map(|(of, to)| of / to).collect();
        self.check(what, &ratios, target);
    }

    /// Compares the median of some numbers with a target.
    pub fn check(&mut self, what: impl Into<String>, samples: &[f64], target: Target) {
        let value = median(samples);
        self.ratios.push(Ratio { what: what.into(), value, target, met: target.is_met_by(value) });
    }

    pub fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Writes `<name>.json`.
    pub fn write(&self, directory: &Path, machine: &Machine, postgres: &PostgresFacts) -> Result<()> {
        let mut whole = json!({ "machine": machine, "postgres": postgres });
        if let (Value::Object(whole), Value::Object(report)) = (&mut whole, serde_json::to_value(self)?) {
            whole.extend(report);
        }
        std::fs::write(directory.join(format!("{}.json", self.name)), format!("{whole:#}\n"))?;
        Ok(())
    }
}

impl Row {
    pub fn metric(&mut self, name: &'static str, samples: Vec<f64>) -> &mut Self {
        self.metrics.push(Metric { name, median: median(&samples), samples });
        self
    }
}

impl Target {
    fn is_met_by(self, value: f64) -> Option<bool> {
        match self {
            Self::AtLeast(least) => Some(value >= least),
            Self::AtMost(most) => Some(value <= most),
            Self::None => None,
        }
    }
}

/// Writes Markdown that is also readable as plain text.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "## {}\n{}\n", self.name, self.about)?;
        let mut columns: Vec<&str> = Vec::new();
        for metric in self.rows.iter().flat_map(|row| &row.metrics) {
            if !columns.contains(&metric.name) {
                columns.push(metric.name);
            }
        }
        let head = std::iter::once("").chain(columns.iter().copied()).map(str::to_owned).collect();
        let rows = self.rows.iter().map(|row| {
            let cells = columns.iter().map(|column| {
                let metric = row.metrics.iter().find(|metric| metric.name == *column);
                metric.map_or_else(String::new, |metric| number(metric.median))
            });
            std::iter::once(row.what.clone()).chain(cells).collect()
        });
        write_table(f, head, rows.collect())?;
        if !self.ratios.is_empty() {
            writeln!(f)?;
            let rows = self.ratios.iter().map(|ratio| {
                let met = match ratio.met {
                    Some(true) => "met",
                    Some(false) => "missed",
                    None => "",
                };
                vec![ratio.what.clone(), number(ratio.value), ratio.target.to_string(), met.to_owned()]
            });
            write_table(f, ["compared", "", "target", ""].map(str::to_owned).to_vec(), rows.collect())?;
        }
        for note in &self.notes {
            writeln!(f, "\nNote: {note}.")?;
        }
        Ok(())
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(least) => write!(f, "≥ {least}"),
            Self::AtMost(most) => write!(f, "≤ {most}"),
            Self::None => Ok(()),
        }
    }
}

fn write_table(f: &mut fmt::Formatter<'_>, head: Vec<String>, rows: Vec<Vec<String>>) -> fmt::Result {
    let widths: Vec<usize> = (0..head.len())
        .map(|column| {
            let cells = std::iter::once(&head).chain(&rows).map(|row| row[column].chars().count());
            cells.max().unwrap_or_default().max(2)
        })
        .collect();
    let rule = widths.iter().enumerate().map(|(column, width)| match column {
        0 => "-".repeat(*width),
        _ => format!("{}:", "-".repeat(width - 1)),
    });
    for row in [head, rule.collect()].into_iter().chain(rows) {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let width = *width;
            match column {
                0 => write!(f, "| {cell:<width$} |")?,
                _ => write!(f, " {cell:>width$} |")?,
            }
        }
        writeln!(f)?;
    }
    Ok(())
}

/// Formats a number with three significant digits and thousands separators.
fn number(value: f64) -> String {
    match value.abs() {
        size if size < 10.0 => format!("{value:.2}"),
        size if size < 100.0 => format!("{value:.1}"),
        _ => {
            let digits = format!("{value:.0}");
            let mut apart = String::new();
            for (place, digit) in digits.chars().enumerate() {
                if place > 0 && (digits.len() - place) % 3 == 0 {
                    apart.push(',');
                }
                apart.push(digit);
            }
            apart
        }
    }
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => sorted[count / 2],
        count => f64::midpoint(sorted[count / 2 - 1], sorted[count / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_show_three_digits_that_count() {
        let shown: Vec<String> = [0.346, 12.34, 123.4, 1_234.5, 1_234_567.0].map(number).into();
        assert_eq!(shown, ["0.35", "12.3", "123", "1,234", "1,234,567"]);
    }

    #[test]
    fn a_ratio_is_the_median_of_the_rounds() {
        let mut report = Report::new("test", String::new());
        report.ratio("half", &[1.0, 20.0, 30.0], &[2.0, 20.0, 300.0], Target::AtLeast(0.5));
        assert_eq!(report.ratios[0].met, Some(true));
        let table = "| compared |      | target |     |\n| -------- | ---: | -----: | --: |\n\
                     | half     | 0.50 |  ≥ 0.5 | met |\n";
        assert!(report.to_string().ends_with(table), "{report}");
    }
}
