//! The rules of values in the OpenAPI document: patterns, lengths, ranges and words.
//!
//! A member or parameter has the same meaning wherever its name appears, so most rules follow from the name. This keeps
//! the document complete when an operation is added.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use utoipa::openapi::path::Parameter;
use utoipa::openapi::schema::{
    AdditionalProperties, ArrayItems, Object, Schema, SchemaFormat, SchemaType, Type,
};
use utoipa::openapi::{OpenApi, RefOr};

use super::lists::words;
use super::refusals::operations;
use syncline_auth::Scope;
use syncline_engine::InboundWebhookState;
use syncline_outbound_webhooks::DeliveryState;
use syncline_sandbox::LogLevel;
use syncline_types::audit_log::AuditAction;
use syncline_types::functions::{FunctionKind, RunState, RunTrigger};

const BASE64: &str = "^([A-Za-z0-9+/]{4})+([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$";
const INTEGRATION_KEY: &str = "^[a-zA-Z0-9~:.@ _-]+$";
const CONNECTION_ID: &str = r#"^[a-zA-Z0-9,.;:=+~\[\]|@${}"'\\/_ -]+$"#;
const MODEL: &str = "^[A-Z][a-zA-Z0-9_-]+$";
/// Names of providers, functions and variants.
const PLAIN: &str = "^[a-zA-Z0-9_-]+$";
const VARIABLE: &str = "^[a-zA-Z_][a-zA-Z0-9_]*$";
const ENVIRONMENT: &str = "^[a-z0-9_-]+$";
const SYNC_REFERENCE: &str = "^[a-zA-Z0-9_-]+(::[a-zA-Z0-9_-]+)?$";
const SYNC_REFERENCES: &str =
    r"^(\*|[a-zA-Z0-9_-]+(::[a-zA-Z0-9_-]+)?(,[a-zA-Z0-9_-]+(::[a-zA-Z0-9_-]+)?)*)$";
const FILTER: &str = "^(added|updated|deleted)(,(added|updated|deleted))*$";
const TAG_KEY: &str = "^[a-zA-Z][a-zA-Z0-9_./-]*$";
const COLOR: &str = "^#[0-9a-fA-F]{6}$";
/// Text on one line with at least one visible character.
const TITLE: &str = r"^[^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f][^\x00-\x1f\x7f-\x9f]*$";
const NOT_BLANK: &str = r"^[^\x00]*[^\s\x00][^\x00]*$";
const PRINTABLE: &str = "^[ -~]+$";
const STATUSES: &str = "^[1-9][0-9]{2}(,[1-9][0-9]{2})*$";

/// The rule of a value. Parts that do not apply to the type of the value have no effect.
#[derive(Debug, Clone, Default)]
struct Rule {
    pattern: Option<&'static str>,
    shortest: Option<usize>,
    longest: Option<usize>,
    format: Option<&'static str>,
    words: Vec<String>,
    least: Option<usize>,
    most: Option<usize>,
    default: Option<Value>,
    most_items: Option<usize>,
    /// The rule of the members' names, for objects with any members.
    names: Option<(&'static str, usize)>,
    most_members: Option<usize>,
    /// The rule of a list's items and of the members of such an object.
    inner: Option<Box<Rule>>,
}

fn text(shortest: usize, longest: usize) -> Rule {
    Rule { shortest: Some(shortest), longest: Some(longest), ..Rule::default() }
}

fn name(pattern: &'static str) -> Rule {
    Rule { pattern: Some(pattern), ..text(1, 255) }
}

fn pattern(pattern: &'static str) -> Rule {
    Rule { pattern: Some(pattern), ..Rule::default() }
}

fn format(format: &'static str) -> Rule {
    Rule { format: Some(format), ..Rule::default() }
}

fn one_of<T: Into<String>>(words: impl IntoIterator<Item = T>) -> Rule {
    Rule { words: words.into_iter().map(Into::into).collect(), ..Rule::default() }
}

fn from(least: usize) -> Rule {
    Rule { least: Some(least), ..Rule::default() }
}

fn range(least: usize, most: usize) -> Rule {
    Rule { most: Some(most), ..from(least) }
}

fn list(inner: Rule, most: usize) -> Rule {
    Rule { inner: Some(Box::new(inner)), most_items: Some(most), ..Rule::default() }
}

/// A page size. Without `most`, larger values are lowered to the largest page, so the schema has no maximum.
fn page_size(default: usize, most: Option<usize>) -> Rule {
    Rule { most, default: Some(json!(default)), ..from(1) }
}

/// All scopes, and their groups.
fn scopes() -> BTreeSet<String> {
    let names = Scope::ALL.iter().map(|scope| scope.as_str());
    let groups =
        names.clone().flat_map(|name| name.match_indices(':').map(|(at, _)| format!("{}*", &name[..=at])));
    names.map(str::to_owned).chain(groups).collect()
}

fn settings() -> Rule {
    Rule {
        names: Some((r"^[\s\S]*$", 255)),
        most_members: Some(100),
        inner: Some(Box::new(Rule { longest: Some(8192), ..Rule::default() })),
        ..Rule::default()
    }
}

fn tags(shortest: usize) -> Rule {
    Rule {
        names: Some((TAG_KEY, 64)),
        most_members: Some(10),
        inner: Some(Box::new(text(shortest, 255))),
        ..Rule::default()
    }
}

/// The rule of a name that means the same everywhere.
fn by_name(named: &str) -> Option<Rule> {
    Some(match named {
        "provider_config_key"
        | "Provider-Config-Key"
        | "providerConfigKey"
        | "unique_key"
        | "integration_id" => name(INTEGRATION_KEY),
        "connection_id" | "Connection-Id" => name(CONNECTION_ID),
        "provider" | "action_name" | "sync_name" | "function" | "variant" | "sync_variant" => name(PLAIN),
        "model" => Rule { shortest: Some(2), ..name(MODEL) },
        "since"
        | "modified_after"
        | "started_after"
        | "started_before"
        | "after"
        | "before"
        | "timestamp"
        | "created_at"
        | "updated_at"
        | "created"
        | "last_fetched_at"
        | "last_deployed"
        | "expires_at"
        | "started_at"
        | "finished_at"
        | "approved_at"
        | "received_at"
        | "next_attempt_at"
        | "first_seen_at"
        | "last_seen_at"
        | "last_modified_at"
        | "deleted_at"
        | "pruned_at"
        | "finishedAt"
        | "nextScheduledSyncAt"
        | "retryAt" => format("date-time"),
        "webhook_url_override" => Rule { longest: Some(2048), ..format("uri-or-empty") },
        "webhook_url_secondary" | "callback_url" => Rule { longest: Some(2048), ..format("uri") },
        "frequency" => format("frequency"),
        "cursor" | "until_cursor" | "Last-Event-ID" => Rule { shortest: Some(1), ..format("cursor") },
        "connect_session_token" | "token" => format("session-token"),
        "filter" => pattern(FILTER),
        _ => return None,
    })
}

/// The rule of a parameter of an operation.
fn of_parameter(operation: &str, named: &str) -> Option<Rule> {
    let kinds = || one_of(["sync", "action", "on-event", "webhook"]);
    Some(match (operation, named) {
        ("list_connections", "connectionId" | "search" | "endUserId" | "endUserOrganizationId") => {
            text(1, 255)
        }
        ("list_connections", "integrationId") => pattern("^[a-zA-Z0-9~:.@ _-]+(,[a-zA-Z0-9~:.@ _-]+)*$"),
        // The default is larger than every value that the host accepts.
        ("list_connections", "limit") => range(1, 2_000),
        ("list_connections" | "list_functions", "page") => range(0, i32::MAX as usize),
        ("list_functions", "limit") => page_size(20, Some(100)),
        ("list_deployments", "limit") => page_size(20, None),
        ("list_deployments", "bundle") => name(PLAIN),
        ("create_deployment", "Bundle-Signature") => pattern(BASE64),
        ("sync_status", "limit") => page_size(500, None),
        (_, "limit") => page_size(100, None),
        ("list_functions" | "get_function", "type") => kinds(),
        ("list_functions", "search") => text(1, 255),
        ("list_run_logs", "search") => text(0, 200),
        ("list_run_logs", "level") => one_of(LogLevel::ALL.map(LogLevel::as_str)),
        ("list_run_logs", "cursor") => pattern("^[0-9]{1,9}$"),
        ("list_inbound_webhooks", "cursor") => format("uuid"),
        ("get_function" | "get_function_code" | "delete_function", "name") => name(PLAIN),
        ("create_variant" | "delete_variant", "name") => name(PLAIN),
        ("create_variant" | "delete_variant", "variant") => name("^(?![bB][aA][sS][eE]$)[a-zA-Z0-9_-]+$"),
        ("put_variable" | "delete_variable", "name") => name(VARIABLE),
        ("get_integration", "include") => list(one_of(["webhook", "credentials"]), 100),
        ("list_records", "ids") => list(text(1, 256), 100),
        (_, "key") => name(INTEGRATION_KEY),
        (_, "tags") => tags(1),
        (_, "params" | "authorization_params" | "credentials") => {
            Rule { names: Some((PLAIN, 255)), inner: Some(Box::new(text(0, 255))), ..Rule::default() }
        }
        ("follow_records", "wait") => range(0, 60),
        ("sync_status", "syncs") => pattern(SYNC_REFERENCES),
        ("list_runs", "kind") => one_of(words(FunctionKind::ALL).map(|(word, _)| word)),
        ("list_runs", "state") => one_of(words(RunState::ALL).map(|(word, _)| word)),
        ("list_runs", "trigger") => one_of(words(RunTrigger::ALL).map(|(word, _)| word)),
        ("list_deliveries", "state") => one_of(DeliveryState::ALL.map(DeliveryState::as_str)),
        ("list_deliveries", "type") => one_of(super::outbound_webhooks::KINDS),
        ("list_inbound_webhooks", "state") => {
            one_of(InboundWebhookState::ALL.map(InboundWebhookState::as_str))
        }
        ("list_entries" | "export_entries", "action") => {
            one_of(words(AuditAction::ALL).map(|(word, _)| word))
        }
        ("scripts_config", "format") => one_of(["nango", "openai"]),
        ("get_action_result" | "get_authorization", "id") => format("uuid"),
        ("start_oauth", "ws_client_id") => format("uuid"),
        ("trigger_action", "X-Max-Retries") => range(0, 5),
        ("trigger_action", "Idempotency-Key") => name(PRINTABLE),
        (_, "Retry-On") => pattern(STATUSES),
        (_, "Retries") => range(0, u32::MAX as usize),
        (_, "Base-Url-Override") => format("base-url"),
        _ => return by_name(named),
    })
}

/// The rule of a member of a schema.
fn of_member(schema: &str, named: &str) -> Option<Rule> {
    Some(match (schema, named) {
        ("CreateIntegrationRequest" | "UpdateIntegrationRequest", "display_name") => {
            Rule { pattern: Some(r"^[^\x00]*$"), ..text(1, 255) }
        }
        ("CreateIntegrationRequest" | "UpdateIntegrationRequest", "integration_config" | "custom") => {
            settings()
        }
        ("CreateKeyRequest", "display_name") => Rule { pattern: Some(NOT_BLANK), ..text(1, 255) },
        ("CreateKeyRequest", "scopes") => list(one_of(scopes()), 1_000),
        ("CreateEnvironmentRequest", "name") => name(ENVIRONMENT),
        ("EndUser" | "Organization", "id") => text(1, 255),
        ("EndUser" | "Organization", "display_name") => text(0, 255),
        ("EndUser", "email") => text(5, 255),
        ("EndUser", "tags") => Rule { most_members: None, ..tags(0) },
        (
            "ImportRequest" | "UpdateConnectionRequest" | "CreateSessionRequest" | "ReconnectSessionRequest",
            "tags",
        ) => tags(1),
        ("CreateSessionRequest", "allowed_integrations") => list(name(INTEGRATION_KEY), 10_000),
        (
            "CreateSessionRequest" | "ReconnectSessionRequest",
            "integrations_config_defaults" | "overrides",
        ) => Rule { names: Some((INTEGRATION_KEY, 255)), ..Rule::default() },
        ("UiOverrides", "docs_connect") => format("uri"),
        ("Dimensions", "integration") => name(INTEGRATION_KEY),
        ("NamedVariant", "name") => name(PLAIN),
        ("PruneRequest", "limit") => from(1),
        ("PutVariableRequest", "value") => {
            Rule { pattern: Some(r"^[^\x00]*$"), longest: Some(64 << 10), ..Rule::default() }
        }
        ("ReplayRequest", "state") => one_of(InboundWebhookState::OVER.map(InboundWebhookState::as_str)),
        ("SyncControlRequest" | "TriggerRequest", "syncs") => {
            Rule { most_items: Some(256), ..Rule::default() }
        }
        ("SettingsChange" | "EnvironmentSettings", "webhook_url") => {
            Rule { longest: Some(2048), ..format("uri") }
        }
        ("SettingsChange" | "EnvironmentSettings", "connect_ui_title") => {
            Rule { pattern: Some(TITLE), ..text(1, 100) }
        }
        ("SettingsChange" | "EnvironmentSettings", "connect_ui_primary_color") => pattern(COLOR),
        ("SyncStatus", "status") => one_of(["RUNNING", "PAUSED", "STOPPED", "SUCCESS", "ERROR"]),
        ("SyncStatus", "type") => one_of(["INITIAL", "INCREMENTAL"]),
        ("SyncStatus", "latestExecutionStatus") => one_of(["RUNNING", "SUCCESS", "STOPPED"]),
        ("RunBody", "kind") => one_of(words(FunctionKind::ALL).map(|(word, _)| word)),
        ("RunBody", "state") => one_of(words(RunState::ALL).map(|(word, _)| word)),
        ("RunBody", "trigger") => one_of(words(RunTrigger::ALL).map(|(word, _)| word)),
        ("LineBody", "level") => one_of(LogLevel::ALL.map(LogLevel::as_str)),
        ("RecordMetadata", "last_action") => one_of(["ADDED", "UPDATED", "DELETED"]),
        ("DeadLetterReplayResponse", "outcome") => one_of(["added", "updated", "unchanged"]),
        ("DeliveryBody", "type") => one_of(super::outbound_webhooks::KINDS),
        ("DeliveryBody", "state") => one_of(DeliveryState::ALL.map(DeliveryState::as_str)),
        ("InboundWebhookBody", "state") => one_of(InboundWebhookState::ALL.map(InboundWebhookState::as_str)),
        ("FunctionBody", "type") => one_of(["sync", "action", "on-event", "webhook"]),
        ("AuditEntryBody", "action") => Rule::default(),
        ("ActiveError", "type") => one_of(["auth", "sync"]),
        _ => return by_name(named),
    })
}

/// Adds the rules to all schemas and parameters of a document.
pub(super) fn describe(openapi: &mut OpenApi) {
    let schemas = openapi.components.iter_mut().flat_map(|components| &mut components.schemas);
    for (schema, definition) in schemas {
        match schema.as_str() {
            "IdOrIds" => apply(&list(name(CONNECTION_ID), 10_000), definition),
            "SyncReference" => apply(&pattern(SYNC_REFERENCE), definition),
            _ => describe_members(schema, definition),
        }
    }
    for operation in openapi.paths.paths.values_mut().flat_map(operations) {
        let id = operation.operation_id.clone().unwrap_or_default();
        for parameter in operation.parameters.iter_mut().flatten() {
            if let RefOr::T(parameter) = parameter {
                describe_parameter(&id, parameter);
            }
        }
    }
}

fn describe_parameter(operation: &str, parameter: &mut Parameter) {
    let Some(schema) = &mut parameter.schema else { return };
    // An absent header has no value; `null` would be text.
    if let RefOr::T(Schema::Object(Object { schema_type: kind @ SchemaType::Array(_), .. })) = schema
        && let SchemaType::Array(kinds) = kind
        && let Some(other) = kinds.iter().find(|one| **one != Type::Null).cloned()
    {
        *kind = SchemaType::Type(other);
    }
    if let Some(rule) = of_parameter(operation, &parameter.name) {
        apply(&rule, schema);
    }
}

fn describe_members(schema: &str, definition: &mut RefOr<Schema>) {
    let RefOr::T(definition) = definition else { return };
    let parts: &mut [RefOr<Schema>] = match definition {
        Schema::Object(object) => {
            for (named, member) in &mut object.properties {
                remove_null_default(member);
                if let Some(rule) = of_member(schema, named) {
                    apply(&rule, member);
                }
            }
            return;
        }
        Schema::AllOf(all) => &mut all.items,
        Schema::OneOf(one) => &mut one.items,
        Schema::AnyOf(any) => &mut any.items,
        Schema::Array(_) => return,
        _ => return,
    };
    for part in parts {
        describe_members(schema, part);
    }
}

/// Removes `null` as the default. It means that the member is absent, and need not be a valid value.
fn remove_null_default(member: &mut RefOr<Schema>) {
    if let RefOr::T(Schema::Object(object)) = member
        && object.default == Some(Value::Null)
    {
        object.default = None;
    }
}

fn apply(rule: &Rule, schema: &mut RefOr<Schema>) {
    let RefOr::T(schema) = schema else { return };
    match schema {
        Schema::Array(array) => {
            array.max_items = array.max_items.or(rule.most_items);
            if let (ArrayItems::RefOrSchema(items), Some(inner)) = (&mut array.items, &rule.inner) {
                apply(inner, items);
            }
        }
        Schema::Object(object) => apply_to_object(rule, object),
        // One value or several: the rule of a list is that of its items, too.
        Schema::OneOf(one) => {
            for item in &mut one.items {
                let rule = match (&rule.inner, &item) {
                    (Some(inner), RefOr::T(Schema::Object(_))) => inner,
                    _ => rule,
                };
                apply(rule, item);
            }
        }
        _ => {}
    }
}

fn apply_to_object(rule: &Rule, object: &mut Object) {
    let is = |wanted: Type| match &object.schema_type {
        SchemaType::Type(kind) => *kind == wanted,
        SchemaType::Array(kinds) => kinds.contains(&wanted),
        SchemaType::AnyValue => false,
    };
    if is(Type::String) {
        let is_nullable = is(Type::Null);
        object.pattern = object.pattern.take().or(rule.pattern.map(str::to_owned));
        object.min_length = object.min_length.or(rule.shortest);
        object.max_length = object.max_length.or(rule.longest);
        let format = rule.format.map(|format| SchemaFormat::Custom(format.to_owned()));
        object.format = object.format.take().or(format);
        if !rule.words.is_empty() && object.enum_values.is_none() {
            let null = is_nullable.then_some(Value::Null);
            let words = rule.words.iter().map(|word| json!(word));
            object.enum_values = Some(words.chain(null).collect());
        }
    } else if is(Type::Integer) {
        // A larger number than the format allows is lowered like others.
        if rule.default.is_some() && rule.most.is_none() {
            object.format = None;
        }
        object.minimum = rule.least.map(Into::into).or(object.minimum.take());
        object.maximum = rule.most.map(Into::into).or(object.maximum.take());
        object.default = object.default.take().or(rule.default.clone());
    } else if is(Type::Object) {
        object.max_properties = object.max_properties.or(rule.most_members);
        if let Some((pattern, longest)) = rule.names {
            let mut names = Object::with_type(Type::String);
            names.pattern = Some(pattern.to_owned());
            names.max_length = Some(longest);
            object.property_names = Some(Box::new(Schema::Object(names)));
        }
        if let Some(inner) = &rule.inner {
            let text = || Box::new(AdditionalProperties::RefOr(Object::with_type(Type::String).into()));
            if let AdditionalProperties::RefOr(members) =
                &mut **object.additional_properties.get_or_insert_with(text)
            {
                apply(inner, members);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use regex::Regex;
    use syncline_types::environment_settings::{UiColor, UiTitle};
    use syncline_types::ids::{
        ConnectionId, EnvironmentName, FunctionName, IntegrationKey, ModelName, VariableName,
    };

    use super::*;

    /// Texts of requests that can be anything, by the name of the schema or operation. Some have rules that a schema
    /// cannot express.
    const FREE: &[&str] = &[
        "ConfigDefaults.user_scopes",
        "ReplayRequest.type",
        "finish_installation.state",
        "finish_installation.installation_id",
        "list_entries.environment",
        "list_entries.actor",
        "list_entries.target",
        "export_entries.environment",
        "export_entries.actor",
        "export_entries.target",
        "finish_oauth.state",
        "start_oauth.user_scope",
        "list_providers.search",
        "proxy_delete.path",
        "proxy_get.path",
        "proxy_patch.path",
        "proxy_post.path",
        "proxy_put.path",
        "list_inbound_webhooks.type",
    ];

    #[test]
    fn every_text_of_a_request_has_a_rule() {
        let document = serde_json::to_value(crate::openapi()).unwrap();
        let mut texts = Vec::new();
        for (schema, definition) in document["components"]["schemas"].as_object().unwrap() {
            if definition["additionalProperties"] == json!(false) {
                let members = definition["properties"].as_object().into_iter().flatten();
                texts.extend(members.map(|(named, member)| (format!("{schema}.{named}"), member)));
            }
        }
        for operation in document["paths"]
            .as_object()
            .unwrap()
            .values()
            .flat_map(|item| item.as_object().unwrap().values())
        {
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let name = format!("{}.{}", operation["operationId"], parameter["name"]).replace('"', "");
                texts.push((name, &parameter["schema"]));
            }
        }
        let is_text =
            |schema: &Value| schema["type"] == "string" || schema["type"] == json!(["string", "null"]);
        let has_rule = |schema: &Value| {
            ["pattern", "maxLength", "format", "enum"].iter().any(|rule| schema.get(rule).is_some())
        };
        let free: Vec<&str> = texts
            .iter()
            .filter(|(_, schema)| is_text(schema) && !has_rule(schema))
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(free, FREE);
    }

    fn fits(rule: &Rule, text: &str) -> bool {
        let length = text.chars().count();
        rule.pattern.is_none_or(|pattern| Regex::new(pattern).unwrap().is_match(text))
            && rule.shortest.is_none_or(|shortest| length >= shortest)
            && rule.longest.is_none_or(|longest| length <= longest)
    }

    proptest! {
        #[test]
        fn the_patterns_are_those_that_the_host_checks(
            text in prop_oneof!["[ -~]{0,4}", "[a-zA-Z0-9_-]{0,3}", "[A-Z][a-z]?", "#[0-9a-g]{5,7}", "\\PC{0,3}", "a{254,257}"]
        ) {
            let rule = |named| by_name(named).unwrap();
            prop_assert_eq!(fits(&rule("unique_key"), &text), text.parse::<IntegrationKey>().is_ok());
            prop_assert_eq!(fits(&rule("connection_id"), &text), text.parse::<ConnectionId>().is_ok());
            prop_assert_eq!(fits(&rule("sync_name"), &text), text.parse::<FunctionName>().is_ok());
            prop_assert_eq!(fits(&rule("model"), &text), text.parse::<ModelName>().is_ok());
            let variable = of_parameter("put_variable", "name").unwrap();
            prop_assert_eq!(fits(&variable, &text), text.parse::<VariableName>().is_ok());
            let environment = of_member("CreateEnvironmentRequest", "name").unwrap();
            prop_assert_eq!(fits(&environment, &text), text.parse::<EnvironmentName>().is_ok());
            let title = of_member("SettingsChange", "connect_ui_title").unwrap();
            prop_assert_eq!(fits(&title, &text), text.parse::<UiTitle>().is_ok());
            let color = of_member("SettingsChange", "connect_ui_primary_color").unwrap();
            prop_assert_eq!(fits(&color, &text), text.parse::<UiColor>().is_ok());
        }
    }
}
