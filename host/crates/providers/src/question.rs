//! The questions that an end user answers when connecting.

use regex::Regex;
use serde::{Deserialize, Serialize};

/// One field of the form that an end user fills in.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    #[serde(default, rename = "type")]
    pub kind: QuestionKind,
    pub title: String,
    pub description: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub example: Option<String>,
    /// A pattern that the whole answer must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<Pattern>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<QuestionFormat>,
    /// Shown before and after the field, but not part of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suffix: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_value: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub secret: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hidden: bool,
    /// Filled in by the connection flow instead of the end user.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub automated: bool,
    /// For `automated` questions: the dotted path in the token response, or the parameter of the redirect, with the
    /// value.
    #[serde(default, skip_serializing)]
    pub from_token_response: Option<String>,
    #[serde(default, skip_serializing)]
    pub from_redirect: Option<String>,
    /// Extracts the first group of this pattern from the value.
    #[serde(default, skip_serializing)]
    pub extract: Option<Pattern>,
    /// The allowed answers; empty if any answer is allowed.
    #[serde(default, rename = "enum", skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<u32>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QuestionKind {
    #[default]
    String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QuestionFormat {
    Hostname,
    Uri,
    Uuid,
    Email,
}

/// A regular expression that must match a whole answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pattern {
    text: String,
    whole: Regex,
}

impl Pattern {
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub fn matches(&self, answer: &str) -> bool {
        self.whole.is_match(answer)
    }

    /// Returns the part of the answer that the first group matches.
    pub fn extract<'a>(&self, answer: &'a str) -> Option<&'a str> {
        Some(self.whole.captures(answer)?.get(1)?.as_str())
    }

    /// Returns the number of groups.
    pub fn groups(&self) -> usize {
        self.whole.captures_len() - 1
    }
}

impl TryFrom<String> for Pattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        // Anchored here, so that a pattern without `^` and `$` does not accept an answer that matches only in part.
        // Compiled alone first, so that it cannot close our group.
        let whole = Regex::new(&text)
            .and_then(|_| Regex::new(&format!(r"\A(?:{text})\z")))
            .map_err(|error| format!("`{text}` is not a regular expression: {error}"))?;
        Ok(Self { text, whole })
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> String {
        pattern.text
    }
}
