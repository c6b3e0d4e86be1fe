//! The actions and targets of the audit log. Their texts are stable.

use strum::{Display, EnumString, IntoStaticStr, VariantArray};

/// What an entry of the audit log reports.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Display, EnumString, IntoStaticStr, VariantArray,
)]
pub enum AuditAction {
    #[strum(serialize = "account.created")]
    AccountCreated,
    #[strum(serialize = "account.role_changed")]
    AccountRoleChanged,
    #[strum(serialize = "account.password_changed")]
    AccountPasswordChanged,
    /// A link was created with which the person can choose a new password.
    #[strum(serialize = "account.password_link_created")]
    AccountPasswordLinkCreated,
    #[strum(serialize = "account.deleted")]
    AccountDeleted,
    #[strum(serialize = "account.signed_in")]
    AccountSignedIn,
    #[strum(serialize = "account.signed_out")]
    AccountSignedOut,
    #[strum(serialize = "environment.created")]
    EnvironmentCreated,
    #[strum(serialize = "environment.settings_changed")]
    EnvironmentSettingsChanged,
    #[strum(serialize = "environment.deleted")]
    EnvironmentDeleted,
    #[strum(serialize = "signing_key.rotated")]
    SigningKeyRotated,
    /// A key was added with which bundles can be signed.
    #[strum(serialize = "bundle_key.added")]
    BundleKeyAdded,
    #[strum(serialize = "bundle_key.removed")]
    BundleKeyRemoved,
    #[strum(serialize = "data_key.rotated")]
    DataKeyRotated,
    /// A data key was encrypted again, because the encryption key was replaced.
    #[strum(serialize = "data_key.rewrapped")]
    DataKeyRewrapped,
    #[strum(serialize = "api_key.created")]
    ApiKeyCreated,
    #[strum(serialize = "api_key.revoked")]
    ApiKeyRevoked,
    #[strum(serialize = "environment_variable.set")]
    EnvironmentVariableSet,
    #[strum(serialize = "environment_variable.deleted")]
    EnvironmentVariableDeleted,
    #[strum(serialize = "integration.created")]
    IntegrationCreated,
    #[strum(serialize = "integration.updated")]
    IntegrationUpdated,
    #[strum(serialize = "integration.deleted")]
    IntegrationDeleted,
    #[strum(serialize = "connection.created")]
    ConnectionCreated,
    /// The credentials of an existing connection were replaced, by an import or because the end user reconnected.
    #[strum(serialize = "connection.replaced")]
    ConnectionReplaced,
    #[strum(serialize = "connection.updated")]
    ConnectionUpdated,
    #[strum(serialize = "connection.metadata_changed")]
    ConnectionMetadataChanged,
    #[strum(serialize = "connection.deleted")]
    ConnectionDeleted,
    /// The credentials of a connection or an integration's app, the values of variables, or signing keys were returned
    /// to a client.
    #[strum(serialize = "credentials.read")]
    CredentialsRead,
    #[strum(serialize = "deployment.activated")]
    DeploymentActivated,
    #[strum(serialize = "sync.triggered")]
    SyncTriggered,
    #[strum(serialize = "sync.started")]
    SyncStarted,
    #[strum(serialize = "sync.paused")]
    SyncPaused,
    #[strum(serialize = "sync.frequency_changed")]
    SyncFrequencyChanged,
    /// A client changed which runs of a sync are recorded.
    #[strum(serialize = "sync.recording_changed")]
    SyncRecordingChanged,
    #[strum(serialize = "sync_variant.created")]
    SyncVariantCreated,
    #[strum(serialize = "sync_variant.deleted")]
    SyncVariantDeleted,
    /// The held deletions of a full sync were approved.
    #[strum(serialize = "run.approved")]
    RunApproved,
    /// The recording of a run was returned to a client.
    #[strum(serialize = "run.recording_read")]
    RunRecordingRead,
    #[strum(serialize = "dead_letter.replayed")]
    DeadLetterReplayed,
    #[strum(serialize = "dead_letter.deleted")]
    DeadLetterDeleted,
    #[strum(serialize = "inbound_webhook.replayed")]
    InboundWebhookReplayed,
    #[strum(serialize = "outbound_webhook.redelivered")]
    OutboundWebhookRedelivered,
}

/// The kind of object that an entry is about.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Display, EnumString, IntoStaticStr, VariantArray,
)]
#[strum(serialize_all = "snake_case")]
pub enum TargetKind {
    /// An account of the dashboard, by email address.
    Account,
    /// An environment, by name.
    Environment,
    /// A secret key, by id.
    ApiKey,
    /// An environment variable, by name.
    EnvironmentVariable,
    /// An integration, by unique key.
    Integration,
    /// A connection: the integration's unique key, `/`, and the connection id.
    Connection,
    /// A deployed bundle, by name.
    Deployment,
    /// A public key for the signatures of bundles, by name.
    BundleKey,
    /// A run, by id.
    Run,
    /// A dead letter, by id.
    DeadLetter,
    /// An inbound webhook, by id.
    InboundWebhook,
    /// A delivery of an outbound webhook, by id.
    OutboundWebhook,
}

impl AuditAction {
    pub const ALL: &[Self] = Self::VARIANTS;

    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl TargetKind {
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_action_is_parsed_from_its_text() {
        for action in AuditAction::ALL {
            assert_eq!(action.as_str().parse(), Ok(*action));
            let (noun, verb) = action.as_str().split_once('.').expect("a noun and a verb");
            assert!(!noun.is_empty() && !verb.is_empty(), "{action}");
        }
    }
}
