//! Reads a TOML table key by key. A value of the wrong type, a missing key and an unknown key become mistakes, and
//! reading continues.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::diagnostics::{Diagnostics, Span, did_you_mean};

/// A value with its place.
pub(super) type Value<'t> = &'t Spanned<DeValue<'t>>;

/// A table that is being read.
pub(super) struct Table<'t> {
    entries: &'t DeTable<'t>,
    /// The place to report if something is missing: the table's key, or the whole of an inline table.
    pub(super) span: Span,
    /// The keys that were read, which are the known ones.
    known: Vec<&'static str>,
}

/// A string with its place.
#[derive(Debug, Clone)]
pub(super) struct Text<'t> {
    pub(super) text: &'t str,
    pub(super) span: Span,
}

/// The place of every key and value, by path.
#[derive(Debug, Clone, Default)]
pub(super) struct Locations(BTreeMap<Vec<String>, Location>);

#[derive(Debug, Clone)]
pub(super) struct Location {
    pub(super) key: Span,
    pub(super) value: Span,
}

/// Parses a text as TOML, as far as it is valid.
pub(super) fn root<'t>(text: &'t str, found: &mut Diagnostics) -> DeTable<'t> {
    let (tree, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        found.add(error.span().unwrap_or(0..0), format!("invalid TOML: {}", error.message()), None);
    }
    tree.into_inner()
}

impl<'t> Table<'t> {
    pub(super) fn root(entries: &'t DeTable<'t>) -> Self {
        Self { entries, span: 0..0, known: Vec::new() }
    }

    /// Returns the value as a table. `key` is the key of the value.
    pub(super) fn of(value: Value<'t>, key: &Text<'_>, found: &mut Diagnostics) -> Option<Self> {
        match value.get_ref() {
            DeValue::Table(entries) => Some(Self { entries, span: key.span.clone(), known: Vec::new() }),
            other => {
                let message = format!("`{}` must be a table, got {}", key.text, other.type_str());
                found.add(value.span(), message, None);
                None
            }
        }
    }

    /// Returns all entries in the order of the file.
    pub(super) fn entries(&self) -> Vec<(Text<'t>, Value<'t>)> {
        let mut entries: Vec<_> = self.entries.iter().map(|(key, value)| (Text::of(key), value)).collect();
        entries.sort_by_key(|(key, _)| key.span.start);
        entries
    }

    pub(super) fn value(&mut self, key: &'static str) -> Option<Value<'t>> {
        self.known.push(key);
        self.entries.get(key)
    }

    pub(super) fn table(&mut self, found: &mut Diagnostics, key: &'static str) -> Option<Self> {
        self.known.push(key);
        let (name, value) = self.entries.get_key_value(key)?;
        Self::of(value, &Text::of(name), found)
    }

    /// Returns the tables in a table, by name.
    pub(super) fn tables(&mut self, found: &mut Diagnostics, key: &'static str) -> Vec<(Text<'t>, Self)> {
        let Some(table) = self.table(found, key) else { return Vec::new() };
        let entries = table.entries().into_iter();
        entries.filter_map(|(name, value)| Self::of(value, &name, found).map(|table| (name, table))).collect()
    }

    pub(super) fn text(&mut self, found: &mut Diagnostics, key: &'static str) -> Option<Text<'t>> {
        let value = self.value(key)?;
        text(value, key, found)
    }

    /// Reads a string that is parsed as a `T`.
    pub(super) fn parsed<T>(&mut self, found: &mut Diagnostics, key: &'static str) -> Option<T>
    where
        T: FromStr<Err: Display>,
    {
        self.text(found, key).and_then(|text| text.parse(found))
    }

    /// Reads a required string that is parsed as a `T`. `owner` names the table in messages.
    pub(super) fn required<T>(
        &mut self,
        found: &mut Diagnostics,
        key: &'static str,
        owner: &str,
        help: &str,
    ) -> Option<T>
    where
        T: FromStr<Err: Display>,
    {
        if self.entries.get(key).is_none() {
            found.add(self.span.clone(), format!("{owner} has no `{key}`"), Some(help.to_owned()));
        }
        self.parsed(found, key)
    }

    pub(super) fn flag(&mut self, found: &mut Diagnostics, key: &'static str, default: bool) -> bool {
        self.stated_flag(found, key).unwrap_or(default)
    }

    /// Reads an optional flag.
    pub(super) fn stated_flag(&mut self, found: &mut Diagnostics, key: &'static str) -> Option<bool> {
        let value = self.value(key)?;
        let flag = value.get_ref().as_bool();
        if flag.is_none() {
            wrong_type(value, key, "true or false", found);
        }
        flag
    }

    /// Reads a whole number above zero.
    pub(super) fn count(&mut self, found: &mut Diagnostics, key: &'static str) -> Option<u64> {
        let value = self.value(key)?;
        let integer = value.get_ref().as_integer();
        let count = integer.and_then(|integer| u64::from_str_radix(integer.as_str(), integer.radix()).ok());
        let count = count.filter(|count| *count > 0);
        if count.is_none() {
            wrong_value(value, key, "a whole number above 0", found);
        }
        count
    }

    /// Reads a number from 0 to 1.
    pub(super) fn share(&mut self, found: &mut Diagnostics, key: &'static str) -> Option<f64> {
        let value = self.value(key)?;
        let number = match value.get_ref() {
            DeValue::Float(float) => float.as_str().parse().ok(),
            DeValue::Integer(integer) => integer.as_str().parse().ok(),
            _ => None,
        };
        let share = number.filter(|number: &f64| (0.0..=1.0).contains(number));
        if share.is_none() {
            wrong_value(value, key, "a number from 0 to 1", found);
        }
        share
    }

    pub(super) fn texts(&mut self, found: &mut Diagnostics, key: &'static str) -> Option<Vec<Text<'t>>> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::Array(elements) => {
                Some(elements.iter().filter_map(|element| text(element, key, found)).collect())
            }
            _ => {
                wrong_type(value, key, "a list of strings", found);
                None
            }
        }
    }

    /// Reads one of several words.
    pub(super) fn word<T: Copy>(
        &mut self,
        found: &mut Diagnostics,
        key: &'static str,
        words: &[(&str, T)],
    ) -> Option<T> {
        let given = self.text(found, key)?;
        let word = words.iter().find(|(word, _)| *word == given.text);
        if word.is_none() {
            let all: Vec<String> = words.iter().map(|(word, _)| format!("`{word}`")).collect();
            let message = format!("`{key}` must not be `{}`", given.text);
            found.add(given.span, message, Some(format!("use {}", all.join(" or "))));
        }
        word.map(|(_, meaning)| *meaning)
    }

    /// Reports every key that was not read as a mistake.
    pub(super) fn finish(self, found: &mut Diagnostics) {
        for (key, _) in self.entries() {
            if !self.known.contains(&key.text) {
                let help = match did_you_mean(key.text, self.known.iter().copied()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("the known keys are {}", self.known.join(", ")),
                };
                found.add(key.span, format!("unknown key `{}`", key.text), Some(help));
            }
        }
    }
}

impl<'t> Text<'t> {
    pub(super) fn of(key: &'t Spanned<DeString<'t>>) -> Self {
        Self { text: key.get_ref(), span: key.span() }
    }

    pub(super) fn parse<T>(&self, found: &mut Diagnostics) -> Option<T>
    where
        T: FromStr<Err: Display>,
    {
        self.text.parse().map_err(|error: T::Err| found.add(self.span.clone(), error.to_string(), None)).ok()
    }
}

impl Locations {
    pub(super) fn of(tree: &DeTable<'_>) -> Self {
        let mut places = Self::default();
        places.add_table(&[], tree);
        places
    }

    /// Returns the place of the path, or of its longest existing part.
    pub(super) fn find(&self, path: &[&str]) -> Location {
        let path: Vec<String> = path.iter().map(|step| (*step).to_owned()).collect();
        let place = (1..=path.len()).rev().find_map(|length| self.0.get(&path[..length]));
        place.cloned().unwrap_or(Location { key: 0..0, value: 0..0 })
    }

    fn add_table(&mut self, path: &[String], table: &DeTable<'_>) {
        for (key, value) in table {
            let path = [path, &[key.get_ref().to_string()]].concat();
            self.add_value(&path, key.span(), value);
        }
    }

    fn add_value(&mut self, path: &[String], key: Span, value: &Spanned<DeValue<'_>>) {
        self.0.insert(path.to_vec(), Location { key, value: value.span() });
        match value.get_ref() {
            DeValue::Table(table) => self.add_table(path, table),
            DeValue::Array(elements) => {
                for (index, element) in elements.iter().enumerate() {
                    let path = [path, &[index.to_string()]].concat();
                    self.add_value(&path, element.span(), element);
                }
            }
            _ => {}
        }
    }
}

fn text<'t>(value: Value<'t>, key: &str, found: &mut Diagnostics) -> Option<Text<'t>> {
    match value.get_ref() {
        DeValue::String(text) => Some(Text { text, span: value.span() }),
        _ => {
            wrong_type(value, key, "a string", found);
            None
        }
    }
}

pub(super) fn wrong_type(value: Value<'_>, key: &str, expected: &str, found: &mut Diagnostics) {
    let given = value.get_ref().type_str();
    found.add(value.span(), format!("`{key}` must be {expected}, got {given}"), None);
}

/// Reports a value whose type or range is wrong.
fn wrong_value(value: Value<'_>, key: &str, expected: &str, found: &mut Diagnostics) {
    let given = match value.get_ref() {
        DeValue::Integer(integer) => integer.as_str(),
        DeValue::Float(float) => float.as_str(),
        _ => return wrong_type(value, key, expected, found),
    };
    found.add(value.span(), format!("`{key}` must be {expected}, got `{given}`"), None);
}
