//! Events for the customer's backend: their bodies, and the deliveries of outbound webhooks.
//!
//! A delivery is written in the transaction of the change that it reports, so it exists exactly if the change was
//! committed. The crate `outbound-webhooks` sends it later.

mod forward;
mod sync;

pub(crate) use self::forward::{Forwarded, note_forward};
pub(crate) use self::sync::{Checkpoints, SavedByWebhook, SyncEnd, SyncSubject, note_saved, note_sync};

use serde_json::{Map, Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use syncline_auth::Environment;
use syncline_providers::AuthMode;
use syncline_store::connections::{self, Connection};
pub(crate) use syncline_store::outbound_webhooks::use_again;
use syncline_store::outbound_webhooks::{self, Message, WebhookSettings};
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::{ConnectionId, ConnectionPk, EnvironmentPk, IntegrationKey};

/// Existing receivers check this constant.
const FROM: &str = "nango";

/// The operation on a connection's credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthOperation {
    /// A connection was created, or its authentication failed.
    Creation,
    /// An existing connection was reconnected.
    Override,
    /// The credentials were refreshed. Only failures are reported.
    Refresh,
}

/// The result of an authentication.
#[derive(Debug, Clone)]
pub struct AuthEvent<'a> {
    pub operation: AuthOperation,
    /// `None` if a creation failed.
    pub connection: Option<ConnectionPk>,
    pub connection_id: &'a ConnectionId,
    pub integration: &'a IntegrationKey,
    pub provider: &'a str,
    /// `None` if the provider is no longer in the catalogue.
    pub auth_mode: Option<AuthMode>,
    pub tags: &'a Value,
    pub end_user: Option<&'a Value>,
    /// The connection's own URL, which replaces the environment's.
    pub webhook_url_override: Option<&'a str>,
    pub failure: Option<AuthFailure<'a>>,
}

/// Why authentication failed. Contains no secrets.
#[derive(Debug, Clone, Copy)]
pub struct AuthFailure<'a> {
    /// A stable code.
    pub code: ErrorCode,
    pub description: &'a str,
}

impl<'a> AuthEvent<'a> {
    /// The event of a stored connection.
    pub fn of(connection: &'a Connection, auth_mode: Option<AuthMode>, operation: AuthOperation) -> Self {
        Self {
            operation,
            connection: Some(connection.pk),
            connection_id: &connection.connection_id,
            integration: &connection.integration_key,
            provider: connection.provider.as_str(),
            auth_mode,
            tags: &connection.tags,
            end_user: connection.end_user.as_ref(),
            webhook_url_override: connection.webhook_url_override.as_deref(),
            failure: None,
        }
    }

    pub fn failed(self, code: ErrorCode, description: &'a str) -> Self {
        Self { failure: Some(AuthFailure { code, description }), ..self }
    }

    fn is_wanted(&self, settings: &WebhookSettings) -> bool {
        match self.operation {
            AuthOperation::Creation => settings.on_auth_creation,
            AuthOperation::Override => true,
            AuthOperation::Refresh => self.failure.is_some() && settings.on_auth_refresh_error,
        }
    }

    fn body(&self, environment: &str) -> Value {
        let operation = match self.operation {
            AuthOperation::Creation => "creation",
            AuthOperation::Override => "override",
            AuthOperation::Refresh => "refresh",
        };
        let mut body = json!({
            "from": FROM,
            "type": "auth",
            "connectionId": self.connection_id,
            "providerConfigKey": self.integration,
            "provider": self.provider,
            "environment": environment,
            "operation": operation,
            "success": self.failure.is_none(),
        });
        if let Some(auth_mode) = self.auth_mode {
            body["authMode"] = auth_mode.as_str().into();
        }
        if self.tags.as_object().is_some_and(|tags| !tags.is_empty()) {
            body["tags"] = self.tags.clone();
        }
        if let Some(end_user) = self.end_user {
            body["endUser"] = end_user_body(end_user);
        }
        if let Some(AuthFailure { code, description }) = self.failure {
            body["error"] = json!({ "type": code, "description": description });
        }
        body
    }
}

/// Writes the deliveries of an event, according to the environment's settings, in the transaction of the change.
pub async fn note_auth(
    conn: &mut PgConnection,
    environment: &Environment,
    event: &AuthEvent<'_>,
) -> sqlx::Result<()> {
    let Some(settings) = outbound_webhooks::find_settings(conn, environment.pk).await? else { return Ok(()) };
    let targets = settings.targets(event.webhook_url_override);
    if targets.is_empty() || !event.is_wanted(&settings) {
        return Ok(());
    }
    let body = to_sorted_json(event.body(environment.name.as_str()));
    let message = Message {
        environment: environment.pk,
        connection: event.connection,
        kind: "auth",
        body: &body,
        headers: None,
    };
    outbound_webhooks::enqueue(conn, &message, &targets).await?;
    outbound_webhooks::notify(conn).await
}

/// An asynchronous action has ended, with success or an error. The event does not contain its result.
#[derive(Debug, Clone)]
pub struct AsyncActionEvent<'a> {
    pub environment: EnvironmentPk,
    pub connection: ConnectionPk,
    pub connection_id: &'a ConnectionId,
    pub integration: &'a IntegrationKey,
    pub job: Uuid,
}

impl AsyncActionEvent<'_> {
    fn body(&self) -> Value {
        json!({
            "from": FROM,
            "type": "async_action",
            "connectionId": self.connection_id,
            "providerConfigKey": self.integration,
            "payload": { "id": self.job, "statusUrl": format!("/action/{}", self.job) },
        })
    }
}

/// Writes the deliveries about the end of an asynchronous action, according to the environment's settings, in the
/// transaction that ends it.
pub async fn note_async_action(conn: &mut PgConnection, event: &AsyncActionEvent<'_>) -> sqlx::Result<()> {
    let Some(settings) = outbound_webhooks::find_settings(conn, event.environment).await? else {
        return Ok(());
    };
    if !settings.on_async_action_completion {
        return Ok(());
    }
    let connection = connections::get(conn, event.connection).await?;
    let own = connection.and_then(|connection| connection.webhook_url_override);
    let targets = settings.targets(own.as_deref());
    if targets.is_empty() {
        return Ok(());
    }
    let message = Message {
        environment: event.environment,
        connection: Some(event.connection),
        kind: "async_action",
        body: &to_sorted_json(event.body()),
        headers: None,
    };
    outbound_webhooks::enqueue(conn, &message, &targets).await?;
    outbound_webhooks::notify(conn).await
}

fn end_user_body(end_user: &Value) -> Value {
    let mut body = Map::from_iter([
        ("endUserId".to_owned(), end_user["id"].clone()),
        ("tags".to_owned(), end_user["tags"].as_object().cloned().unwrap_or_default().into()),
    ]);
    for (name, value) in
        [("endUserEmail", &end_user["email"]), ("organizationId", &end_user["organization"]["id"])]
    {
        if !value.is_null() {
            body.insert(name.to_owned(), value.clone());
        }
    }
    body.into()
}

/// Returns the JSON text that is signed: keys sorted at every depth, without spaces.
fn to_sorted_json(mut value: Value) -> String {
    value.sort_all_objects();
    value.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event<'a>(
        id: &'a ConnectionId,
        integration: &'a IntegrationKey,
        tags: &'a Value,
        end_user: &'a Value,
    ) -> AuthEvent<'a> {
        AuthEvent {
            operation: AuthOperation::Creation,
            connection: None,
            connection_id: id,
            integration,
            provider: "hubspot",
            auth_mode: Some(AuthMode::OAuth2),
            tags,
            end_user: Some(end_user),
            webhook_url_override: None,
            failure: None,
        }
    }

    #[test]
    fn the_keys_of_a_body_are_sorted_at_every_depth() {
        let (id, integration) = ("c1".parse().unwrap(), "crm".parse().unwrap());
        let tags = json!({ "z": "1", "a": "2" });
        let end_user =
            json!({ "id": "u", "email": "u@x.com", "display_name": null, "tags": { "y": "1", "b": "2" } });
        let event = event(&id, &integration, &tags, &end_user).failed(ErrorCode::TokenErr, "it was denied");
        assert_eq!(
            to_sorted_json(event.body("dev")),
            concat!(
                r#"{"authMode":"OAUTH2","connectionId":"c1","endUser":{"endUserEmail":"u@x.com","endUserId":"u","#,
                r#""tags":{"b":"2","y":"1"}},"environment":"dev","error":{"description":"it was denied","#,
                r#""type":"token_err"},"from":"nango","operation":"creation","provider":"hubspot","#,
                r#""providerConfigKey":"crm","success":false,"tags":{"a":"2","z":"1"},"type":"auth"}"#
            )
        );
    }

    #[test]
    fn settings_decide_which_events_are_reported() {
        let settings = |on_auth_creation, on_auth_refresh_error| WebhookSettings {
            primary: None,
            secondary: None,
            on_auth_creation,
            on_auth_refresh_error,
            on_sync_completion_always: true,
            on_sync_error: true,
            on_async_action_completion: true,
        };
        let (id, integration) = ("c1".parse().unwrap(), "crm".parse().unwrap());
        let (tags, end_user) = (json!({}), json!({ "id": "u" }));
        let of = |operation| AuthEvent { operation, ..event(&id, &integration, &tags, &end_user) };
        assert!(of(AuthOperation::Creation).is_wanted(&settings(true, false)));
        assert!(!of(AuthOperation::Creation).is_wanted(&settings(false, true)));
        assert!(of(AuthOperation::Override).is_wanted(&settings(false, false)));
        assert!(
            !of(AuthOperation::Refresh).is_wanted(&settings(true, true)),
            "a successful refresh is never reported"
        );
        assert!(
            of(AuthOperation::Refresh).failed(ErrorCode::TokenErr, "y").is_wanted(&settings(false, true))
        );
        assert!(
            !of(AuthOperation::Refresh).failed(ErrorCode::TokenErr, "y").is_wanted(&settings(true, false))
        );
    }
}
