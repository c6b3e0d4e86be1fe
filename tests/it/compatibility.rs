//! Compatibility of the public interfaces: the REST API (OpenAPI), the guest interface (WIT), `syncline.toml` and the
//! command line. `tests/compatibility/baseline.txt` lists what the last release offered and required.
//!
//! A removed offer breaks clients that use it, and a new requirement breaks clients that do not meet it. The changelog
//! must list such changes. All other changes are compatible. `make baseline` writes the file when a version is released.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::operations::{DOCUMENT, Operation, resolve};
use crate::support::repository;

const BASELINE: &str = "tests/compatibility/baseline.txt";
const WRITE: &str = "SYNCLINE_WRITE_BASELINE";
/// The rules of a schema that restrict a request.
const RULES: [&str; 11] = [
    "pattern",
    "format",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "minItems",
    "maxItems",
    "maxProperties",
    "propertyNames",
    "additionalProperties",
];

/// One line of an interface: an offer or a requirement of a subject.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    /// What the changelog calls it: an operation, a command, a file or a section.
    subject: String,
    is_requirement: bool,
    text: String,
}

impl Line {
    fn to_text(&self) -> String {
        let kind = if self.is_requirement { "requires" } else { "offers" };
        format!("{} | {kind} | {}", self.subject, self.text)
    }

    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.splitn(3, " | ");
        let (subject, kind, text) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Self { subject: subject.to_owned(), is_requirement: kind == "requires", text: text.to_owned() })
    }
}

/// Collects the lines of an interface.
#[derive(Default)]
struct Interface(BTreeSet<Line>);

impl Interface {
    fn current() -> Self {
        let mut interface = Self::default();
        for operation in Operation::all() {
            interface.add_operation(&operation);
        }
        interface.add_wit();
        interface.add_tables("syncline.toml", "docs/reference/syncline-toml.md");
        interface.add_tables("syncline", "docs/reference/cli.md");
        interface.add_usage();
        interface
    }

    fn offer(&mut self, subject: &str, text: impl Into<String>) {
        self.0.insert(Line { subject: subject.to_owned(), is_requirement: false, text: text.into() });
    }

    fn require(&mut self, subject: &str, text: impl Into<String>) {
        self.0.insert(Line { subject: subject.to_owned(), is_requirement: true, text: text.into() });
    }

    fn add_operation(&mut self, operation: &Operation) {
        let name = operation.name();
        self.offer(&name, "operation");
        for place in ["path", "query", "header"] {
            for parameter in operation.parameters(place) {
                let at = format!("{place} `{}`", parameter["name"].as_str().unwrap_or_default());
                if parameter["required"] == true {
                    self.require(&name, at.clone());
                }
                self.add_request(&name, &at, &parameter["schema"], &mut Vec::new());
            }
        }
        if let Some((schema, _)) = operation.body() {
            self.add_request(&name, "body", schema, &mut Vec::new());
        }
        for (status, response) in operation.responses() {
            if status.starts_with('2') {
                let at = format!("response {status}");
                self.offer(&name, at.clone());
                let content = &response["content"]["application/json"]["schema"];
                self.add_response(&name, &at, content, &mut Vec::new());
            }
        }
    }

    fn add_request(
        &mut self,
        name: &str,
        at: &str,
        schema: &'static Value,
        inside: &mut Vec<&'static Value>,
    ) {
        let schema = resolve(schema);
        if inside.contains(&schema) {
            return;
        }
        inside.push(schema);
        self.offer(name, format!("{at}: {}", kind(schema)));
        for rule in RULES {
            if let Some(value) =
                schema.get(rule).filter(|value| rule != "additionalProperties" || **value == false)
            {
                self.require(name, format!("{at}: {rule} {value}"));
            }
        }
        for value in schema["enum"].as_array().into_iter().flatten() {
            self.offer(name, format!("{at} = {value}"));
        }
        if schema["enum"].is_array() {
            self.require(name, format!("{at}: one of the listed values"));
        }
        for member in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            self.require(name, format!("{at}.{member}"));
        }
        for (inner, schema) in parts(schema) {
            self.add_request(name, &format!("{at}{inner}"), schema, inside);
        }
        inside.pop();
    }

    fn add_response(
        &mut self,
        name: &str,
        at: &str,
        schema: &'static Value,
        inside: &mut Vec<&'static Value>,
    ) {
        let schema = resolve(schema);
        if inside.contains(&schema) {
            return;
        }
        inside.push(schema);
        self.offer(name, format!("{at}: {}", kind(schema)));
        for member in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            self.offer(name, format!("{at}.{member} always"));
        }
        for (inner, schema) in parts(schema) {
            self.add_response(name, &format!("{at}{inner}"), schema, inside);
        }
        inside.pop();
    }

    /// Every line of the WIT package without its comments. A published version is never changed, see `wit.rs`.
    fn add_wit(&mut self) {
        let mut versions = entries(&repository("wit"));
        versions.retain(|path| path.is_dir());
        for path in versions.iter().flat_map(|version| entries(version)) {
            let subject = path.strip_prefix(repository("")).unwrap_or(&path).display().to_string();
            for line in read(&subject).lines().map(str::trim) {
                if !line.is_empty() && !line.starts_with("//") && line != "}" {
                    self.offer(&subject, line);
                }
            }
        }
    }

    /// The first cells of all tables of a reference page, with the headings above them.
    fn add_tables(&mut self, subject: &str, page: &str) {
        let (mut heading, mut columns) = (String::new(), Vec::new());
        for line in read(page).lines() {
            if line.starts_with('#') {
                line.trim_start_matches('#').trim().clone_into(&mut heading);
            }
            let Some(row) = line.strip_prefix("| ") else {
                columns.clear();
                continue;
            };
            let cells: Vec<String> = row.split(" |").map(|cell| cell.trim().to_owned()).collect();
            if columns.is_empty() {
                columns = cells;
            } else if !row.starts_with("--") {
                let text = format!("{heading}: {}", cells[0]);
                let is_required =
                    columns.iter().zip(&cells).any(|(column, cell)| column == "Required" && cell == "yes");
                if is_required {
                    self.require(subject, text.clone());
                }
                self.offer(subject, text);
            }
        }
    }

    /// The usage lines of the command line: `syncline deploy [--dry-run] [PROJECT]`.
    fn add_usage(&mut self) {
        let page = read("docs/reference/cli.md");
        for line in page.lines().filter(|line| line.starts_with("syncline ")) {
            let (mut command, mut depth) = (String::new(), 0);
            let mut words = Vec::new();
            for word in line.split(' ') {
                let opens = word.matches('[').count();
                if depth == 0
                    && opens == 0
                    && words.is_empty()
                    && word.chars().all(|c| c.is_ascii_lowercase() || c == '-')
                {
                    command = format!("{command} {word}").trim().to_owned();
                    continue;
                }
                if depth > 0 {
                    let last: &mut String = words.last_mut().expect("a bracket was opened");
                    last.push(' ');
                    last.push_str(word);
                } else {
                    words.push(word.to_owned());
                }
                depth = (depth + opens).saturating_sub(word.matches(']').count());
            }
            self.offer(&command, "command");
            for word in words {
                if word.starts_with('[') { self.offer(&command, word) } else { self.require(&command, word) }
            }
        }
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(repository(path)).unwrap_or_else(|error| panic!("{path} cannot be read: {error}"))
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the folder exists");
    entries.map(|entry| entry.expect("the folder can be read").path()).collect()
}

/// The type of a value, as a word.
fn kind(schema: &Value) -> String {
    match &schema["type"] {
        Value::String(kind) => kind.clone(),
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" or "),
        _ => "any".to_owned(),
    }
}

/// The schemas within a schema, each with its place.
fn parts(schema: &'static Value) -> Vec<(String, &'static Value)> {
    let members = schema["properties"].as_object().into_iter().flatten();
    let mut parts: Vec<_> = members.map(|(name, member)| (format!(".{name}"), member)).collect();
    parts.extend(schema.get("items").map(|items| ("[]".to_owned(), items)));
    let others = schema.get("additionalProperties").filter(|others| others.is_object());
    parts.extend(others.map(|others| (".*".to_owned(), others)));
    for several in ["oneOf", "anyOf", "allOf"] {
        let variants = schema[several].as_array().into_iter().flatten();
        parts.extend(variants.map(|variant| (String::new(), variant)));
    }
    parts
}

/// The breaking changes between two versions of the interfaces.
fn breaking(before: &BTreeSet<Line>, after: &BTreeSet<Line>) -> Vec<Line> {
    let subjects: BTreeSet<&str> = before.iter().map(|line| line.subject.as_str()).collect();
    let gone = before.difference(after).filter(|line| !line.is_requirement);
    // A new operation or command may require anything.
    let new = after
        .difference(before)
        .filter(|line| line.is_requirement && subjects.contains(line.subject.as_str()));
    // A restriction of a new member is no restriction of requests without it.
    let is_of_new_part = |line: &&Line| {
        let at = line.text.split(": ").next().unwrap_or_default();
        let had =
            |text: &str| before.iter().any(|old| old.subject == line.subject && old.text.starts_with(text));
        line.text.contains(": ") && !had(&format!("{at}:"))
    };
    gone.chain(new.filter(|line| !is_of_new_part(line))).cloned().collect()
}

/// The breaking changes that the changelog of the next version lists.
fn announced() -> String {
    let changelog = read("CHANGELOG.md");
    let unreleased = changelog.split("\n## ").find(|section| section.starts_with("[Unreleased]"));
    let section =
        unreleased.unwrap_or_default().split("\n### ").find(|part| part.starts_with("Breaking changes"));
    section.unwrap_or_default().to_owned()
}

#[test]
fn breaking_changes_are_in_the_changelog() {
    assert!(DOCUMENT["paths"].is_object());
    let current = Interface::current().0;
    if std::env::var_os(WRITE).is_some() {
        let lines: String = current.iter().map(|line| line.to_text() + "\n").collect();
        fs::write(repository(BASELINE), lines).unwrap();
    }
    let baseline = read(BASELINE);
    let baseline: BTreeSet<Line> = baseline.lines().filter_map(Line::parse).collect();
    let announced = announced();
    let missing: Vec<String> = breaking(&baseline, &current)
        .iter()
        .filter(|line| !announced.contains(&format!("`{}`", line.subject)))
        .map(Line::to_text)
        .collect();
    assert!(
        missing.is_empty(),
        "These changes break clients. Undo them, or describe them under `### Breaking changes` in CHANGELOG.md with \
         the part before the first bar in backticks:\n{}",
        missing.join("\n")
    );
}

#[test]
fn changes_are_classified() {
    let lines = |texts: &[&str]| texts.iter().map(|text| Line::parse(text).unwrap()).collect::<BTreeSet<_>>();
    let before = lines(&[
        "GET /a | offers | operation",
        "GET /a | offers | query `x`: string",
        "GET /a | requires | query `x`: maxLength 9",
    ]);
    for (change, expected) in [
        (&["GET /a | offers | operation", "GET /a | offers | query `x`: string"][..], 0),
        (&["GET /a | offers | operation", "GET /a | requires | query `x`: maxLength 9"], 1),
        (
            &[
                "GET /a | offers | operation",
                "GET /a | offers | query `x`: string",
                "GET /a | requires | query `x`",
            ],
            1,
        ),
        (
            &[
                "GET /a | offers | operation",
                "GET /a | offers | query `x`: string",
                "GET /a | requires | query `x`: maxLength 8",
            ],
            1,
        ),
        (
            &[
                "GET /a | offers | operation",
                "GET /a | offers | query `x`: string",
                "GET /a | offers | query `y`: string",
                "GET /a | requires | query `y`: maxLength 8",
            ],
            0,
        ),
        (
            &[
                "GET /a | offers | operation",
                "GET /a | offers | query `x`: string",
                "PUT /b | offers | operation",
                "PUT /b | requires | body.x",
            ],
            0,
        ),
    ] {
        assert_eq!(breaking(&before, &lines(change)).len(), expected, "{change:?}");
    }
}
