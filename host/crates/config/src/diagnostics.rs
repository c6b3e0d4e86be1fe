//! Mistakes in `syncline.toml`: each has its place, what is wrong, and how to correct it.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use miette::{GraphicalReportHandler, LabeledSpan, MietteDiagnostic, NamedSource, Report};
use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};

/// Maximum number of mistakes that are reported for a file. Finding the place of each takes time.
const MAX_MISTAKES: usize = 100;

/// A range of bytes in the file.
pub type Span = Range<usize>;

/// The mistakes of one file, in the order of the file. `Display` prints one line for each, [`Diagnostics::render`]
/// also shows the places. As JSON, it is a list of `{file, line, column, snippet, message, help}`.
#[derive(Debug, Clone)]
pub struct Diagnostics {
    file: Arc<SourceFile>,
    mistakes: Vec<ConfigProblem>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblem {
    pub span: Span,
    /// What is wrong.
    pub message: String,
    /// How to correct it.
    pub help: Option<String>,
}

/// A file with the name that messages call it by.
#[derive(Debug)]
pub(super) struct SourceFile {
    pub(super) name: String,
    pub(super) text: String,
}

impl Diagnostics {
    pub(super) fn new(file: Arc<SourceFile>) -> Self {
        Self { file, mistakes: Vec::new() }
    }

    /// Adds a mistake, unless the maximum number is reached.
    pub fn add(&mut self, span: Span, message: impl Into<String>, help: Option<String>) {
        if self.is_full() {
            return;
        }
        self.mistakes.push(ConfigProblem { span, message: message.into(), help });
        self.mistakes.sort_by_key(|mistake| mistake.span.start);
    }

    /// Whether the maximum number of mistakes is reached.
    pub fn is_full(&self) -> bool {
        self.mistakes.len() >= MAX_MISTAKES
    }

    pub fn is_empty(&self) -> bool {
        self.mistakes.is_empty()
    }

    pub fn mistakes(&self) -> &[ConfigProblem] {
        &self.mistakes
    }

    /// Returns `Ok` if there are no mistakes.
    pub fn into_result(self) -> Result<(), Self> {
        if self.is_empty() { Ok(()) } else { Err(self) }
    }

    /// Renders each mistake with the lines around it, in colour if the terminal supports it.
    pub fn render(&self) -> String {
        let mut out = String::new();
        for mistake in &self.mistakes {
            let mut diagnostic = MietteDiagnostic::new(&mistake.message)
                .with_label(LabeledSpan::new_primary_with_span(None, mistake.span.clone()));
            diagnostic.help.clone_from(&mistake.help);
            let source = NamedSource::new(&self.file.name, self.file.text.clone());
            let report = Report::new(diagnostic).with_source_code(source);
            if GraphicalReportHandler::new().render_report(&mut out, report.as_ref()).is_err() {
                out.push_str(&self.line(mistake));
            }
            out.push('\n');
        }
        out
    }

    /// Returns line and column, both counted from 1. The column counts characters.
    pub fn position(&self, span: &Span) -> (usize, usize) {
        let before = &self.file.text[..self.file.text.floor_char_boundary(span.start)];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }

    fn line(&self, mistake: &ConfigProblem) -> String {
        let (line, column) = self.position(&mistake.span);
        let help = mistake.help.iter().map(|help| format!("; {help}")).collect::<String>();
        format!("{}:{line}:{column}: {}{help}", self.file.name, mistake.message)
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.mistakes.iter().map(|mistake| self.line(mistake)).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for Diagnostics {}

impl Serialize for Diagnostics {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct ConfigProblemJson<'a> {
            file: &'a str,
            line: usize,
            column: usize,
            snippet: &'a str,
            message: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            help: Option<&'a str>,
        }
        let mut list = serializer.serialize_seq(Some(self.mistakes.len()))?;
        for mistake in &self.mistakes {
            let (line, column) = self.position(&mistake.span);
            list.serialize_element(&ConfigProblemJson {
                file: &self.file.name,
                line,
                column,
                snippet: self.file.text.lines().nth(line - 1).unwrap_or(""),
                message: &mistake.message,
                help: mistake.help.as_deref(),
            })?;
        }
        list.end()
    }
}

/// Returns the candidate that the user most likely meant, if one is similar.
pub fn did_you_mean<'c>(given: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    let given = given.to_lowercase();
    let scored = candidates.into_iter().map(|candidate| {
        let lower = candidate.to_lowercase();
        (strsim::normalized_damerau_levenshtein(&given, &lower).max(plural(&given, &lower)), candidate)
    });
    scored
        .filter(|(score, _)| *score >= 0.6)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

/// Similarity of a word and its plural, which is high even for short words.
fn plural(a: &str, b: &str) -> f64 {
    let is_plural = |one: &str, many: &str| many.strip_prefix(one) == Some("s");
    if is_plural(a, b) || is_plural(b, a) { 0.9 } else { 0.0 }
}
