//! The examples of parameters in the OpenAPI document.
//!
//! They name the same objects as the examples of bodies: the connection `user-1` of the integration `shop`, and its model
//! `Buyer`. The API reference shows a request with all parameters of an operation. So the examples of its parameters fit
//! together, and flags have their default.

use std::mem;

use serde_json::{Value, json};
use utoipa::openapi::path::ParameterBuilder;
use utoipa::openapi::{OpenApi, RefOr};

use super::refusals::operations;

/// The example of the parameters with a name.
struct Example {
    /// The operations with this example. Empty: all operations.
    operations: &'static [&'static str],
    parameter: &'static str,
    value: Value,
}

/// An example for all operations.
fn all(parameter: &'static str, value: impl Into<Value>) -> Example {
    only(&[], parameter, value)
}

/// An example for these operations.
fn only(operations: &'static [&'static str], parameter: &'static str, value: impl Into<Value>) -> Example {
    Example { operations, parameter, value: value.into() }
}

/// The examples. The first that applies to a parameter is used.
fn examples() -> Vec<Example> {
    const CURSOR: &str = "AQAAAAAAAAABAAAAAQAAAAAAAAABB25j";
    const ENVIRONMENT: &str = "01978a3e-0001-7c21-9d4e-2b6a1f0c8e11";
    const KEY: &str = "01978a3e-0003-7c21-9d4e-2b6a1f0c8e11";
    const RUN: &str = "01978a3e-1111-7c21-9d4e-2b6a1f0c8e11";
    const JOB: &str = "01978a3e-4444-7c21-9d4e-2b6a1f0c8e11";
    const DELIVERY: &str = "01978a3e-5555-7c21-9d4e-2b6a1f0c8e11";
    const DEAD_LETTER: &str = "01978a3e-5f60-7c21-9d4e-2b6a1f0c8e11";
    const WEBHOOK: &str = "01978a3e-6666-7c21-9d4e-2b6a1f0c8e11";
    const AUTHORIZATION: &str = "7d44aa0c-8f5e-4c5b-9a61-0f2e4d6b8c11";
    const STATE: &str = "q83vEjRWeJq83vEjRWeJq83vEjRWeJq83vEjRWeJq80";

    vec![
        // Integrations, connections and their objects
        all("Connection-Id", "user-1"),
        all("Provider-Config-Key", "shop"),
        all("bundle", "shop"),
        all("connectionId", "user-1"),
        all("connection_id", "user-1"),
        all("endUserId", "7"),
        all("endUserOrganizationId", "acme"),
        all("environment", "prod"),
        all("environment_uuid", ENVIRONMENT),
        all("function", "buyers"),
        all("ids", json!(["b-1"])),
        all("integrationId", "shop"),
        all("key", "shop"),
        all("model", "Buyer"),
        only(&["put_variable", "delete_variable"], "name", "REGION"),
        all("name", "buyers"),
        all("provider", "stripe-api-key"),
        all("provider_config_key", "shop"),
        all("syncs", "buyers"),
        all("tags", json!({ "plan": "pro" })),
        all("unique_key", "shop"),
        only(&["create_variant", "delete_variant"], "variant", "europe"),
        all("variant", "base"),
        // Ids
        only(&["get_action_result"], "id", JOB),
        only(&["get_authorization"], "id", AUTHORIZATION),
        only(&["drop_dead_letter", "replay_dead_letter"], "id", DEAD_LETTER),
        only(&["delete_environment"], "id", ENVIRONMENT),
        only(&["get_run", "get_run_recording", "list_run_logs", "approve_run"], "id", RUN),
        only(&["get_delivery", "redeliver"], "id", DELIVERY),
        only(&["get_inbound_webhook", "replay"], "id", WEBHOOK),
        // Pages
        only(&["list_inbound_webhooks"], "cursor", WEBHOOK),
        only(&["list_run_logs"], "cursor", "100"),
        all("cursor", CURSOR),
        only(&["list_deployments", "list_functions"], "limit", 20),
        all("limit", 100),
        all("page", 0),
        // Filters
        all("action", "connection.deleted"),
        all("actor", KEY),
        all("after", "2026-03-01T00:00:00Z"),
        all("before", "2026-03-02T00:00:00Z"),
        all("filter", "added,updated"),
        all("kind", "sync"),
        all("level", "info"),
        all("modified_after", "2026-03-01T09:00:00Z"),
        only(&["list_connections"], "search", "ada"),
        only(&["list_providers"], "search", "stripe"),
        all("search", "buyers"),
        all("since", "2026-03-01T09:00:00Z"),
        all("started_after", "2026-03-01T09:00:00Z"),
        all("started_before", "2026-03-02T09:00:00Z"),
        only(&["list_deliveries"], "state", "delivered"),
        only(&["list_inbound_webhooks"], "state", "processed"),
        only(&["list_runs"], "state", "success"),
        all("target", "shop/user-1"),
        all("trigger", "schedule"),
        only(&["list_deliveries"], "type", "auth"),
        only(&["list_inbound_webhooks"], "type", "customer.updated"),
        all("type", "sync"),
        // Options of responses
        all("force_refresh", false),
        all("format", "nango"),
        all("include", json!(["webhook"])),
        all("refresh_github_app_jwt_token", false),
        all("refresh_token", false),
        // Changes of records
        all("Last-Event-ID", CURSOR),
        all("wait", 30),
        // Actions
        all("Idempotency-Key", "order-1017"),
        all("X-Async", false),
        all("X-Max-Retries", 0),
        // The proxy
        all("Base-Url-Override", "https://api.stripe.com/v1"),
        all("Decompress", false),
        all("Forward-Headers-On-Redirect", false),
        all("Retries", 3),
        all("Retry-On", "404,409"),
        all("path", "customers"),
        // Deployments
        all("Bundle-Signature", "dW50cnVzdGVkIGNvbW1lbnQ6IHNpZ25hdHVyZSBmcm9tIG1pbmlzaWduIHNlY3JldCBrZXkK"),
        all("accept_capabilities", false),
        all("dry_run", false),
        // Authorizations
        all("authorization_params", json!({ "prompt": "consent" })),
        all("connect_session_token", "nango_connect_session_0123456789abcdef"),
        all(
            "credentials",
            json!({ "oauth_client_id_override": "c-1", "oauth_client_secret_override": "s-1" }),
        ),
        all("installation_id", "12345678"),
        all("params", json!({ "subdomain": "acme" })),
        all("state", STATE),
        all("user_scope", "users:read"),
        all("ws_client_id", AUTHORIZATION),
    ]
}

/// The example of a parameter of an operation.
fn find<'e>(examples: &'e [Example], operation: &str, parameter: &str) -> Option<&'e Example> {
    let applies = |one: &&Example| one.operations.is_empty() || one.operations.contains(&operation);
    examples.iter().filter(|one| one.parameter == parameter).find(applies)
}

/// Adds the examples to all parameters of a document.
pub(super) fn describe(openapi: &mut OpenApi) {
    let examples = examples();
    for operation in openapi.paths.paths.values_mut().flat_map(operations) {
        let id = operation.operation_id.clone().unwrap_or_default();
        for parameter in operation.parameters.iter_mut().flatten() {
            if let RefOr::T(parameter) = parameter
                && let Some(example) = find(&examples, &id, &parameter.name)
            {
                let builder = ParameterBuilder::from(mem::take(parameter));
                *parameter = builder.example(Some(example.value.clone())).build();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ptr;

    use super::*;

    #[test]
    fn every_example_belongs_to_a_parameter() {
        let mut openapi = crate::openapi();
        let mut parameters = BTreeSet::new();
        for operation in openapi.paths.paths.values_mut().flat_map(operations) {
            let id = operation.operation_id.clone().unwrap_or_default();
            for parameter in operation.parameters.iter().flatten() {
                if let RefOr::T(parameter) = parameter {
                    parameters.insert((id.clone(), parameter.name.clone()));
                }
            }
        }
        let examples = examples();
        for example in &examples {
            let operations: Vec<&str> = parameters
                .iter()
                .filter(|(operation, parameter)| {
                    find(&examples, operation, parameter).is_some_and(|found| ptr::eq(found, example))
                })
                .map(|(operation, _)| operation.as_str())
                .collect();
            let parameter = example.parameter;
            assert!(!operations.is_empty(), "no operation uses the example of `{parameter}`");
            for operation in example.operations {
                assert!(operations.contains(operation), "`{operation}` has no parameter `{parameter}`");
            }
        }
    }
}
