//! Checks the statements of one section of the specification, and prints them as a table with their results.

use std::fmt;

use chrono::{DateTime, NaiveDateTime};
use serde_json::Value;

use crate::support::{Answer, Api, Request};

/// One section of the specification.
pub struct Section {
    title: &'static str,
    entries: Vec<Entry>,
}

struct Entry {
    statement: String,
    /// What differs from the statement.
    result: Result<(), String>,
}

/// The type of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Text,
    Integer,
    Boolean,
    Object,
    List,
    Null,
    /// Text that is a URL with a host.
    Url,
    Uuid,
    /// RFC 3339, in UTC with milliseconds.
    Time,
    /// Like `Time`, with an offset in place of `Z`.
    TimeWithOffset,
    /// RFC 3339, in UTC with any precision.
    Moment,
}

use Kind::{Boolean, Integer, List, Moment, Null, Object, Text, Time, TimeWithOffset, Url, Uuid};

impl Kind {
    fn matches(self, value: &Value) -> bool {
        let text = value.as_str();
        match self {
            Text => text.is_some(),
            Integer => value.is_i64() || value.is_u64(),
            Boolean => value.is_boolean(),
            Object => value.is_object(),
            List => value.is_array(),
            Null => value.is_null(),
            Url => text.is_some_and(|text| text.parse::<url::Url>().is_ok_and(|url| url.has_host())),
            Uuid => text.is_some_and(|text| uuid::Uuid::parse_str(text).is_ok()),
            Time => text.is_some_and(|text| is_time(text, "Z")),
            TimeWithOffset => text.is_some_and(|text| is_time(text, "+00:00")),
            Moment => {
                text.is_some_and(|text| text.ends_with('Z') && DateTime::parse_from_rfc3339(text).is_ok())
            }
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Text => "a string",
            Integer => "an integer",
            Boolean => "a boolean",
            Object => "an object",
            List => "a list",
            Null => "null",
            Url => "a URL",
            Uuid => "a UUID",
            Time => "a time in UTC with milliseconds, such as `2026-03-01T09:00:00.000Z`",
            TimeWithOffset => "a time in UTC with milliseconds, such as `2026-03-01T09:00:00.000+00:00`",
            Moment => "a time in UTC",
        })
    }
}

fn is_time(text: &str, zone: &str) -> bool {
    let time = text.strip_suffix(zone).filter(|time| time.len() == "2026-03-01T09:00:00.000".len());
    time.is_some_and(|time| NaiveDateTime::parse_from_str(time, "%Y-%m-%dT%H:%M:%S%.3f").is_ok())
}

impl Section {
    pub fn new(title: &'static str) -> Self {
        Self { title, entries: Vec::new() }
    }

    /// States that the request returns this status.
    pub async fn returns(&mut self, request_name: &str, request: Request, status: u16) -> Answer {
        let statement = format!("{request_name} returns {status}");
        self.send(statement, request, |answer| expect_status(answer, status)).await
    }

    /// States that the request is rejected with this status and code.
    pub async fn rejects(&mut self, request_name: &str, request: Request, status: u16, code: &str) -> Answer {
        let statement = format!("{request_name} returns {status} `{code}`");
        self.send(statement, request, |answer| expect_code(answer, status, code)).await
    }

    /// States that the request is rejected with this status and code, and that the first entry of `errors` names this
    /// place: members separated by dots.
    pub async fn rejects_at(
        &mut self,
        request_name: &str,
        request: Request,
        (status, code): (u16, &str),
        place: &str,
    ) -> Answer {
        let statement = format!("{request_name} returns {status} `{code}` for `{place}`");
        let check = |answer: &Answer| {
            expect_code(answer, status, code)?;
            expect_equal(&place_of(answer), &Value::from(place))
        };
        self.send(statement, request, check).await
    }

    /// States that the request without a key is rejected.
    pub async fn needs_key(&mut self, api: &Api, method: &str, path: &str) {
        let request = api.with_key(None).request(method, path);
        let name = format!("`{method} {}` without a key", path.split('?').next().unwrap_or(path));
        self.rejects(&name, request, 401, "missing_auth_header").await;
    }

    /// States that the value is the expected one.
    pub fn equal(&mut self, statement: &str, actual: &Value, expected: impl Into<Value>) {
        self.record(statement.to_owned(), expect_equal(actual, &expected.into()));
    }

    /// States a condition. `seen` is the value that it concerns.
    pub fn holds(&mut self, statement: &str, condition: bool, seen: &dyn fmt::Debug) {
        let result = if condition { Ok(()) } else { Err(format!("{seen:?}")) };
        self.record(statement.to_owned(), result);
    }

    /// States the types of an object's members.
    pub fn members(&mut self, subject: &str, object: &Value, members: &[(&str, Kind)]) {
        for (name, kind) in members {
            let result = match object.get(name) {
                Some(value) if kind.matches(value) => Ok(()),
                Some(value) => Err(format!("it is {value}")),
                None => Err(format!("there is no such member in {object}")),
            };
            self.record(format!("`{name}` of {} is {kind}", within(subject)), result);
        }
    }

    /// States that an object has these members and no others.
    pub fn only_members(&mut self, subject: &str, object: &Value, members: &[(&str, Kind)]) {
        self.members(subject, object, members);
        let is_other = |name: &&String| !members.iter().any(|(known, _)| known == name);
        let others: Vec<&String> = object.as_object().into_iter().flat_map(serde_json::Map::keys).collect();
        let others: Vec<&String> = others.into_iter().filter(is_other).collect();
        let statement = format!("There are no other members in {}", within(subject));
        self.holds(&statement, others.is_empty() && object.is_object(), &others);
    }

    /// States that an object does not have this member.
    pub fn lacks(&mut self, subject: &str, object: &Value, name: &str) {
        let statement = format!("There is no `{name}` in {}", within(subject));
        self.holds(&statement, object.is_object() && object.get(name).is_none(), object);
    }

    /// States that a response has this header.
    pub fn header(&mut self, subject: &str, answer: &Answer, name: &str, value: &str) {
        let statement = format!("The header `{name}` of {} is `{value}`", within(subject));
        self.holds(&statement, answer.header(name) == Some(value), &answer.header(name));
    }

    /// States that a response has no body.
    pub fn empty(&mut self, subject: &str, answer: &Answer) {
        let statement = format!("The body of {} is empty", within(subject));
        self.holds(&statement, answer.body.is_empty(), &answer.text());
    }

    /// Prints the table, and fails if a statement differs.
    pub fn finish(self) {
        let differing = self.entries.iter().filter(|entry| entry.result.is_err()).count();
        assert!(differing == 0, "{}: {differing} of {} statements differ", self.title, self.entries.len());
    }

    async fn send(
        &mut self,
        statement: String,
        request: Request,
        check: impl FnOnce(&Answer) -> Result<(), String>,
    ) -> Answer {
        let (answer, undocumented) = request.send_and_compare().await;
        let result = check(&answer).and_then(|()| undocumented.map_or(Ok(()), Err));
        self.record(statement, result);
        answer
    }

    fn record(&mut self, statement: String, result: Result<(), String>) {
        self.entries.push(Entry { statement, result });
    }
}

impl Drop for Section {
    /// Also prints the entries of a section that a panic ended early.
    fn drop(&mut self) {
        println!("\n{}", self.title);
        for (number, entry) in (1..).zip(&self.entries) {
            match &entry.result {
                Ok(()) => println!("{number:4}  ok       {}", entry.statement),
                Err(difference) => println!("{number:4}  DIFFERS  {}: {difference}", entry.statement),
            }
        }
        let (total, ok) =
            (self.entries.len(), self.entries.iter().filter(|entry| entry.result.is_ok()).count());
        println!("{total} statements: {ok} ok, {} differ", total - ok);
    }
}

fn expect_status(answer: &Answer, status: u16) -> Result<(), String> {
    if answer.status == status { Ok(()) } else { Err(format!("{} {}", answer.status, answer.text())) }
}

fn expect_code(answer: &Answer, status: u16, code: &str) -> Result<(), String> {
    expect_status(answer, status)?;
    expect_equal(&body(answer)["error"]["code"], &Value::from(code))
}

fn expect_equal(actual: &Value, expected: &Value) -> Result<(), String> {
    if actual == expected { Ok(()) } else { Err(format!("{actual} instead of {expected}")) }
}

/// The subject of a statement within a sentence.
fn within(subject: &str) -> String {
    let rest = subject.strip_prefix(|first: char| first.is_ascii_uppercase());
    let is_word = rest.is_some_and(|rest| rest.starts_with(|next: char| next == ' ' || next.is_lowercase()));
    if is_word { format!("{}{}", subject[..1].to_lowercase(), &subject[1..]) } else { subject.to_owned() }
}

/// The place that the first entry of `errors` names.
fn place_of(answer: &Answer) -> Value {
    let path = &body(answer)["error"]["errors"][0]["path"];
    let parts: Option<Vec<&str>> = path.as_array().and_then(|path| path.iter().map(Value::as_str).collect());
    parts.map_or(Value::Null, |parts| parts.join(".").into())
}

/// The JSON body of a response, or null.
pub fn body(answer: &Answer) -> Value {
    serde_json::from_slice(&answer.body).unwrap_or_default()
}

/// Text of a member, or an empty string.
pub fn string(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

pub fn get(api: &Api, path: &str) -> Request {
    api.request("GET", path)
}

pub fn delete(api: &Api, path: &str) -> Request {
    api.request("DELETE", path)
}

pub fn post(api: &Api, path: &str, body: &Value) -> Request {
    api.request("POST", path).json(body)
}

pub fn put(api: &Api, path: &str, body: &Value) -> Request {
    api.request("PUT", path).json(body)
}

pub fn patch(api: &Api, path: &str, body: &Value) -> Request {
    api.request("PATCH", path).json(body)
}

/// The example with another value of a member.
pub fn with(example: &Value, member: &str, value: impl Into<Value>) -> Value {
    let mut changed = example.clone();
    changed[member] = value.into();
    changed
}

/// The example without a member.
pub fn without(example: &Value, member: &str) -> Value {
    let mut changed = example.clone();
    changed.as_object_mut().and_then(|members| members.remove(member));
    changed
}
