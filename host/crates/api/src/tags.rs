//! End users, organizations and the tags that are derived from them, with one set of rules for connect sessions and
//! imports.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::error::ApiError;

const MAX_TAGS: usize = 10;
const MAX_KEY_BYTES: usize = 64;
const MAX_VALUE_CHARS: usize = 255;

/// The end user who owns an account.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EndUser {
    /// Id of the user in your product, 1 to 255 characters.
    pub id: String,
    /// Email address, 5 to 255 characters.
    pub email: Option<String>,
    /// Name, at most 255 characters.
    pub display_name: Option<String>,
    /// Further tags of the user. They are added to the tags of the connection if the total is at most 10.
    pub tags: Option<BTreeMap<String, String>>,
}

/// The organization of an end user.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Organization {
    /// Id of the organization in your product, 1 to 255 characters.
    pub id: String,
    /// Name, at most 255 characters.
    pub display_name: Option<String>,
}

impl EndUser {
    /// Checks every field.
    pub fn check(&self) -> Result<(), ApiError> {
        check_text(&["end_user", "id"], &self.id, 1)?;
        if let Some(email) = &self.email {
            check_text(&["end_user", "email"], email, 5)?;
        }
        if let Some(name) = &self.display_name {
            check_text(&["end_user", "display_name"], name, 0)?;
        }
        for (key, value) in self.tags.iter().flatten() {
            check_key(&["end_user", "tags", key], key)?;
            check_text(&["end_user", "tags", key], value, 0)?;
        }
        Ok(())
    }

    /// The JSON that is stored with the connection.
    pub fn stored(&self, organization: Option<&Organization>) -> Value {
        json!({
            "id": self.id,
            "display_name": self.display_name,
            "email": self.email,
            "tags": self.tags,
            "organization": organization.map(|organization| json!({
                "id": organization.id,
                "display_name": organization.display_name,
            })),
        })
    }
}

impl Organization {
    pub fn check(&self) -> Result<(), ApiError> {
        check_text(&["organization", "id"], &self.id, 1)?;
        let name = self.display_name.as_deref().unwrap_or_default();
        check_text(&["organization", "display_name"], name, 0)
    }
}

/// Returns the tags that are derived from an end user and an organization, which were checked before. The user's own
/// tags are omitted if the total would exceed the limit.
pub(super) fn generated_tags(
    end_user: Option<&EndUser>,
    organization: Option<&Organization>,
) -> Map<String, Value> {
    let (user, organization) = (end_user.map(|user| (user, &user.tags)), organization);
    let facts = [
        ("end_user_id", user.map(|(user, _)| &user.id)),
        ("end_user_email", user.and_then(|(user, _)| user.email.as_ref())),
        ("end_user_display_name", user.and_then(|(user, _)| user.display_name.as_ref())),
        ("organization_id", organization.map(|organization| &organization.id)),
        (
            "organization_display_name",
            organization.and_then(|organization| organization.display_name.as_ref()),
        ),
    ];
    let mut tags: Map<String, Value> = facts
        .into_iter()
        .filter_map(|(key, text)| Some((key, text.filter(|text| !text.is_empty())?)))
        .map(|(key, text)| (key.to_owned(), Value::String(text.chars().take(MAX_VALUE_CHARS).collect())))
        .collect();
    let own = user.and_then(|(_, tags)| tags.as_ref()).into_iter().flatten();
    let own: Map<String, Value> =
        own.map(|(key, value)| (key.to_lowercase(), Value::String(value.clone()))).collect();
    if tags.len() + own.len() <= MAX_TAGS {
        tags.extend(own);
    }
    tags
}

/// Derives an end user from tags, for requests without `end_user`, so that lists of connections can be searched by it.
pub(super) fn end_user_of_tags(tags: &Map<String, Value>) -> Option<Value> {
    let organization = tags
        .get("organization_id")
        .map(|id| json!({ "id": id, "display_name": tags.get("organization_display_name") }));
    Some(json!({
        "id": tags.get("end_user_id")?,
        "display_name": tags.get("end_user_display_name"),
        "email": tags.get("end_user_email"),
        "tags": null,
        "organization": organization,
    }))
}

/// Checks the tags of a request and converts their keys to lower case.
pub(super) fn checked_tags(tags: BTreeMap<String, String>) -> Result<Map<String, Value>, ApiError> {
    if tags.len() > MAX_TAGS {
        return Err(ApiError::body("too_big", &["tags"], format!("must have at most {MAX_TAGS} tags")));
    }
    let mut seen = BTreeSet::new();
    let mut checked = Map::new();
    for (key, value) in tags {
        let path = ["tags", &key];
        check_key(&path, &key)?;
        check_text(&path, &value, 1)?;
        let lower = key.to_lowercase();
        if !seen.insert(lower.clone()) {
            let message = "is a duplicate: keys are converted to lower case";
            return Err(ApiError::body("invalid_key", &path, message));
        }
        if lower == "end_user_email" && !looks_like_email(&value) {
            return Err(ApiError::body("invalid_format", &path, "must be an email address"));
        }
        checked.insert(lower, value.into());
    }
    Ok(checked)
}

fn check_key(path: &[&str], key: &str) -> Result<(), ApiError> {
    let is_valid = key.len() <= MAX_KEY_BYTES
        && key.starts_with(|c: char| c.is_ascii_alphabetic())
        && key.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-./".contains(&b));
    if is_valid {
        return Ok(());
    }
    let message = "must start with a letter, contain only letters, digits and `_-./`, and be at most 64 characters long";
    Err(ApiError::body("invalid_key", path, message))
}

fn check_text(path: &[&str], text: &str, least: usize) -> Result<(), ApiError> {
    let chars = text.chars().count();
    if text.contains('\0') {
        return Err(ApiError::body("invalid_format", path, "must not contain a NUL character"));
    }
    if (least..=MAX_VALUE_CHARS).contains(&chars) {
        return Ok(());
    }
    let code = if chars < least { "too_small" } else { "too_big" };
    Err(ApiError::body(code, path, format!("must be {least} to {MAX_VALUE_CHARS} characters long")))
}

fn looks_like_email(text: &str) -> bool {
    text.split_once('@').is_some_and(|(name, domain)| {
        let domain_is_plain = domain.contains('.') && !domain.starts_with('.') && !domain.ends_with('.');
        !name.is_empty() && domain_is_plain && !text.contains(char::is_whitespace) && !domain.contains('@')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(tags: usize) -> EndUser {
        EndUser {
            id: "u-7".to_owned(),
            email: Some("ada@example.com".to_owned()),
            display_name: None,
            tags: Some((0..tags).map(|n| (format!("Tag{n}"), "x".to_owned())).collect()),
        }
    }

    #[test]
    fn all_own_tags_of_a_user_are_omitted_if_there_are_too_many() {
        assert_eq!(generated_tags(Some(&user(8)), None).len(), 10);
        let generated = generated_tags(Some(&user(9)), None);
        assert_eq!(
            generated,
            *json!({"end_user_id": "u-7", "end_user_email": "ada@example.com"}).as_object().unwrap()
        );
    }

    #[test]
    fn tag_keys_are_lower_case_and_unique() {
        let tags = |pairs: &[(&str, &str)]| {
            checked_tags(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
        };
        assert_eq!(tags(&[("Plan", "Pro")]).unwrap(), *json!({"plan": "Pro"}).as_object().unwrap());
        for refused in [
            &[("Plan", "a"), ("plan", "b")][..],
            &[("1st", "a")],
            &[("a b", "a")],
            &[("a", "")],
            &[("a", "x\0")],
            &[(&"k".repeat(65), "a")],
            &[("a", &"v".repeat(256))],
            &[("end_user_email", "nobody")],
        ] {
            assert!(tags(refused).is_err(), "{refused:?}");
        }
    }
}
