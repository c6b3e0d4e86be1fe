//! The configuration of a connection: the end user's answers before the authorization, and the values that the provider
//! adds at the callback.

use serde_json::{Map, Value};
use url::form_urlencoded;

use crate::ConnectSession;
use crate::authorizations::AuthorizationError;
use syncline_auth::flows::find_in_response;
use syncline_providers::{Provider, UnusableConfig};
use syncline_types::ids::IntegrationKey;
use syncline_types::json;
use syncline_types::sanitize::contains_nul;
use syncline_types::secret::Secret;

/// The configuration key for scopes. Only a backend may set it.
const SCOPES: &str = "oauth_scopes_override";

/// Builds the configuration at the start of an authorization. `before` is the configuration of a reconnected
/// connection. The end user's answers take precedence over it, and the session's values over both.
pub(super) fn of_start(
    provider: &Provider,
    session: &ConnectSession,
    integration: &IntegrationKey,
    before: Option<&Value>,
    mut answers: Map<String, Value>,
) -> Result<Map<String, Value>, AuthorizationError> {
    // Drop answers without a question: functions and webhook routing trust the configuration.
    answers.retain(|name, _| {
        name != SCOPES && provider.connection_config.get(name).is_some_and(|asked| !asked.automated)
    });
    if let Some((name, _)) = answers.iter().find(|(name, value)| name.contains('\0') || contains_nul(value)) {
        return Err(AuthorizationError::Nul(name.replace('\0', "")));
    }
    let mut config = before.and_then(Value::as_object).cloned().unwrap_or_default();
    config.extend(session.connection_config(integration, answers));
    for (name, question) in &provider.connection_config {
        let answer = provider.answer(&config, name)?;
        if answer.is_none() && !question.optional && !question.automated {
            return Err(UnusableConfig::Missing { name: name.clone() }.into());
        }
    }
    Ok(config)
}

/// Adds the values that the provider's entry extracts from the callback URL and from the token response.
pub(super) fn add_automated(
    provider: &Provider,
    config: &mut Map<String, Value>,
    query: &str,
    token_response: &Secret<String>,
) -> Result<(), UnusableConfig> {
    let response = json::parse(token_response.expose()).unwrap_or_default();
    for (name, question) in &provider.connection_config {
        let from_redirect = question.from_redirect.as_deref().and_then(|wanted| {
            let found = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == wanted);
            found.map(|(_, value)| value.into_owned())
        });
        let from_response =
            question.from_token_response.as_deref().and_then(|path| {
                match find_in_response(&response, path)? {
                    Value::String(text) => Some(text.clone()),
                    Value::Number(number) => Some(number.to_string()),
                    _ => None,
                }
            });
        let found = from_redirect.or(from_response).map(|text| text.replace('\0', ""));
        let extracted = match (&question.extract, found) {
            (Some(extract), Some(text)) => extract.extract(&text).map(str::to_owned),
            (_, found) => found,
        };
        if let Some(extracted) = extracted {
            config.insert(name.clone(), extracted.into());
        }
    }
    provider.check_config(config)
}

/// Returns the scopes that a backend sets instead of the integration's.
pub(super) fn scopes_override(config: &Map<String, Value>) -> Option<Vec<String>> {
    let scopes: Vec<String> = match config.get(SCOPES)? {
        Value::String(list) => split_scopes(list),
        Value::Array(items) => items.iter().filter_map(|item| item.as_str().map(str::to_owned)).collect(),
        _ => return None,
    };
    (!scopes.is_empty()).then_some(scopes)
}

fn split_scopes(list: &str) -> Vec<String> {
    list.split([',', ' ']).filter(|scope| !scope.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ENTRY: &str = r#"
        name = "acme"
        display_name = "Acme"
        auth_mode = "OAUTH2"
        docs = "https://acme.example"
        authorization_url = "https://acme.example/authorize"
        token_url = "https://acme.example/token"
        [source]
        address = "https://acme.example"
        checked_at = "2026-11-21"
        [connection_config.instance]
        title = "Instance"
        description = "Where your data lives."
        pattern = '[a-z0-9]+'
        automated = true
        from_token_response = "team.url"
        extract = 'https://([a-z0-9]+)\.acme\.example/?'
        [connection_config.company]
        title = "Company"
        description = "The company that was chosen."
        pattern = '\d+'
        optional = true
        automated = true
        from_redirect = "companyId"
        [proxy]
        base_url = "https://${connectionConfig.instance}.acme.example"
    "#;

    fn add(query: &str, response: &Value) -> Result<Value, UnusableConfig> {
        let provider: Provider = toml::from_str(ENTRY).unwrap();
        let mut config = Map::new();
        add_automated(&provider, &mut config, query, &response.to_string().into())?;
        Ok(Value::Object(config))
    }

    #[test]
    fn values_are_extracted_as_the_entry_says() {
        let response = json!({ "team": { "url": "https://tea7.acme.example/" } });
        let added = add("code=1&companyId=42&state=s", &response).unwrap();
        assert_eq!(added, json!({ "instance": "tea7", "company": "42" }));
    }

    #[test]
    fn values_that_do_not_match_the_entry_are_rejected() {
        let elsewhere = json!({ "team": { "url": "https://evil.example/?.acme.example" } });
        assert_eq!(add("", &elsewhere), Err(UnusableConfig::Missing { name: "instance".to_owned() }));
        let response = json!({ "team": { "url": "https://tea7.acme.example" } });
        let refused = add("companyId=4%2F..", &response);
        assert!(matches!(refused, Err(UnusableConfig::Pattern { name, .. }) if name == "company"));
    }

    #[test]
    fn scopes_are_a_text_or_a_list() {
        for (given, expected) in [
            (json!("a,b c"), Some(vec!["a", "b", "c"])),
            (json!(["a", "b"]), Some(vec!["a", "b"])),
            (json!(""), None),
            (json!([]), None),
            (json!(7), None),
        ] {
            let config = Map::from_iter([(SCOPES.to_owned(), given.clone())]);
            let expected = expected.map(|scopes| scopes.into_iter().map(str::to_owned).collect::<Vec<_>>());
            assert_eq!(scopes_override(&config), expected, "{given}");
        }
    }
}
