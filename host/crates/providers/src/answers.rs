//! Checks an end user's answers against the questions of a provider.

use std::collections::BTreeMap;

use url::{Host, Url};
use uuid::Uuid;

use super::question::{Question, QuestionFormat};

/// Maximum length of an answer in bytes. A private key in PEM fits.
const MAX_ANSWER: usize = 16_384;

/// What is wrong with an answer or a missing answer. Never contains the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrongAnswer {
    /// Name of the question.
    pub name: String,
    pub kind: WrongAnswerKind,
    /// What a correct answer looks like.
    pub problem: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WrongAnswerKind {
    Missing,
    TooLong,
    /// The answer does not have the required form.
    Form,
    /// The answer is not one of the allowed ones.
    Choice,
    /// The provider has no such question.
    NotAsked,
}

/// Returns the answers to store: the given ones, trimmed except for passwords, and the default values of the
/// others. Otherwise returns every mistake.
pub fn check_answers(
    questions: &BTreeMap<String, Question>,
    given: BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, Vec<WrongAnswer>> {
    let mut accepted = BTreeMap::new();
    let mut wrong: Vec<WrongAnswer> = given
        .keys()
        .filter(|name| questions.get(*name).is_none_or(|question| question.automated))
        .map(|name| mistake(name, WrongAnswerKind::NotAsked, "is not a question of this provider".to_owned()))
        .collect();
    for (name, question) in questions.iter().filter(|(_, question)| !question.automated) {
        let answer = given.get(name).map(|answer| if name == "password" { answer } else { answer.trim() });
        let answer = answer.filter(|answer| !answer.is_empty());
        match answer.or(question.default_value.as_deref()) {
            Some(answer) => match check(question, answer) {
                Ok(()) => drop(accepted.insert(name.clone(), answer.to_owned())),
                Err((kind, problem)) => wrong.push(mistake(name, kind, problem)),
            },
            None if question.optional => {}
            None => wrong.push(mistake(name, WrongAnswerKind::Missing, "is required".to_owned())),
        }
    }
    if wrong.is_empty() { Ok(accepted) } else { Err(wrong) }
}

/// Checks a credential that a client has stored before. Like the Connect UI, it must have the form that the provider's
/// question requires. Returns what is wrong.
pub fn check_credential(question: &Question, value: &str) -> Result<(), String> {
    check(question, value).map_err(|(_, problem)| problem)
}

fn check(question: &Question, answer: &str) -> Result<(), (WrongAnswerKind, String)> {
    if answer.len() > MAX_ANSWER {
        return Err((WrongAnswerKind::TooLong, format!("must be at most {MAX_ANSWER} bytes long")));
    }
    if answer.contains('\0') {
        return Err((WrongAnswerKind::Form, "must not contain a NUL character".to_owned()));
    }
    if !question.choices.is_empty() && !question.choices.iter().any(|choice| choice == answer) {
        return Err((WrongAnswerKind::Choice, format!("must be one of {}", question.choices.join(", "))));
    }
    let example =
        || question.example.as_ref().map(|example| format!(", such as `{example}`")).unwrap_or_default();
    if let Some(pattern) = &question.pattern
        && !pattern.matches(answer)
    {
        return Err((WrongAnswerKind::Form, format!("must match `{}`{}", pattern.as_str(), example())));
    }
    let (fits, what) = match question.format {
        None => (true, ""),
        Some(QuestionFormat::Hostname) => (matches!(Host::parse(answer), Ok(Host::Domain(_))), "a host name"),
        Some(QuestionFormat::Uri) => (Url::parse(answer).is_ok(), "a URL"),
        Some(QuestionFormat::Uuid) => (Uuid::parse_str(answer).is_ok(), "a UUID"),
        Some(QuestionFormat::Email) => (is_email(answer), "an e-mail address"),
    };
    if fits { Ok(()) } else { Err((WrongAnswerKind::Form, format!("must be {what}{}", example()))) }
}

fn is_email(text: &str) -> bool {
    text.split_once('@')
        .is_some_and(|(user, host)| !user.is_empty() && !host.is_empty() && !host.contains('@'))
}

fn mistake(name: &str, kind: WrongAnswerKind, problem: String) -> WrongAnswer {
    WrongAnswer { name: name.to_owned(), kind, problem }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn checked(given: &[(&str, &str)]) -> Result<BTreeMap<String, String>, Vec<(String, WrongAnswerKind)>> {
        let ask = |more: serde_json::Value| {
            let mut question = json!({ "title": "A", "description": "A." });
            question.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serde_json::from_value(question).unwrap()
        };
        let questions = [
            ("shop", ask(json!({ "pattern": "[a-z]+", "example": "tea" }))),
            ("password", ask(json!({ "optional": true }))),
            ("region", ask(json!({ "enum": ["eu", "us"], "default_value": "eu" }))),
            ("mail", ask(json!({ "format": "email", "optional": true }))),
            ("realm", ask(json!({ "automated": true }))),
        ];
        let questions = questions.into_iter().map(|(name, question)| (name.to_owned(), question)).collect();
        let given = given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        check_answers(&questions, given)
            .map_err(|wrong| wrong.into_iter().map(|wrong| (wrong.name, wrong.kind)).collect())
    }

    #[test]
    fn valid_answers_are_returned_with_the_defaults_of_the_others() {
        let accepted = checked(&[("shop", " tea\n"), ("password", " p "), ("mail", "")]).unwrap();
        let expected = [("password", " p "), ("region", "eu"), ("shop", "tea")];
        assert_eq!(accepted.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn every_mistake_is_reported() {
        let wrong = |given| checked(given).unwrap_err();
        let one = |name: &str, kind| vec![(name.to_owned(), kind)];
        assert_eq!(wrong(&[]), one("shop", WrongAnswerKind::Missing));
        assert_eq!(wrong(&[("shop", "  ")]), one("shop", WrongAnswerKind::Missing));
        assert_eq!(wrong(&[("shop", "te a")]), one("shop", WrongAnswerKind::Form));
        assert_eq!(wrong(&[("shop", "a"), ("password", "\0")]), one("password", WrongAnswerKind::Form));
        assert_eq!(wrong(&[("shop", "a"), ("region", "cn")]), one("region", WrongAnswerKind::Choice));
        assert_eq!(wrong(&[("shop", "a"), ("mail", "ada")]), one("mail", WrongAnswerKind::Form));
        assert_eq!(wrong(&[("shop", "a"), ("other", "x")]), one("other", WrongAnswerKind::NotAsked));
        assert_eq!(wrong(&[("shop", "a"), ("realm", "x")]), one("realm", WrongAnswerKind::NotAsked));
        let long = "a".repeat(MAX_ANSWER + 1);
        assert_eq!(checked(&[("shop", &long)]).unwrap_err(), one("shop", WrongAnswerKind::TooLong));
        assert_eq!(wrong(&[("shop", "A"), ("region", "cn")]).len(), 2);
    }
}
