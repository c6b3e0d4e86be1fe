//! Forwards provider webhooks to the customer's backend.

use serde_json::Value;
use sqlx::PgConnection;

use syncline_store::inbound_webhooks::MatchedConnection;
use syncline_store::outbound_webhooks::{self, Message, WebhookSettings};
use syncline_types::ids::{EnvironmentPk, IntegrationKey, ProviderSlug};

/// A provider webhook, or the part of it that concerns one connection.
#[derive(Clone, Copy)]
pub(crate) struct Forwarded<'a> {
    pub environment: EnvironmentPk,
    pub provider: &'a ProviderSlug,
    pub integration: &'a IntegrationKey,
    /// `None` if the webhook concerns no known connection.
    pub addressee: Option<&'a MatchedConnection>,
    /// JSON in canonical form.
    pub payload: &'a str,
    pub headers: &'a Value,
}

impl Forwarded<'_> {
    /// Keys are sorted, as in every body. Numbers of the payload stay as the provider wrote them.
    fn body(&self) -> String {
        let Some(addressee) = self.addressee else { return self.payload.to_owned() };
        let text = |text: &str| Value::from(text).to_string();
        format!(
            r#"{{"connectionId":{},"from":{},"payload":{},"providerConfigKey":{},"type":"forward"}}"#,
            text(addressee.connection_id.as_str()),
            text(self.provider.as_str()),
            self.payload,
            text(self.integration.as_str()),
        )
    }
}

/// Writes the deliveries of a forwarded webhook. Returns how many.
pub(crate) async fn note_forward(
    conn: &mut PgConnection,
    settings: &WebhookSettings,
    forwarded: &Forwarded<'_>,
) -> sqlx::Result<u64> {
    let own = forwarded.addressee.and_then(|addressee| addressee.webhook_url_override.as_deref());
    let targets = settings.targets(own);
    if targets.is_empty() {
        return Ok(0);
    }
    let message = Message {
        environment: forwarded.environment,
        connection: forwarded.addressee.map(|addressee| addressee.connection),
        kind: "forward",
        body: &forwarded.body(),
        headers: Some(forwarded.headers),
    };
    outbound_webhooks::enqueue(conn, &message, &targets).await
}
