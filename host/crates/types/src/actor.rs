//! Who makes a change or reads credentials, for the audit log.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The author of a change, and the request with which it was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actor {
    pub identity: Identity,
    /// The address of the client's network connection. `None` if the change was not made through a host's API.
    pub address: Option<IpAddr>,
    /// The `X-Request-Id` of the request.
    pub request_id: Option<String>,
}

/// Who made a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Identity {
    /// A person who is signed in to the dashboard.
    Account { id: Uuid, email: String },
    /// A client of the API with a secret key.
    ApiKey { id: Uuid, name: String },
    /// An end user who connects an account.
    ConnectSession { id: Uuid, end_user_id: Option<String> },
    /// A person who runs a command of the CLI that writes to the database. `user` is the name of the operating
    /// system's user.
    CommandLine { user: String },
    /// A host, for changes that no client requested, such as the first secret key.
    Host,
}

impl Actor {
    /// A host that acts without a request.
    pub fn host() -> Self {
        Self { identity: Identity::Host, address: None, request_id: None }
    }

    /// The user of a command of the CLI.
    pub fn command_line(user: impl Into<String>) -> Self {
        Self { identity: Identity::CommandLine { user: user.into() }, address: None, request_id: None }
    }
}

impl Identity {
    /// The stable text of the kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Account { .. } => "account",
            Self::ApiKey { .. } => "api_key",
            Self::ConnectSession { .. } => "connect_session",
            Self::CommandLine { .. } => "command_line",
            Self::Host => "host",
        }
    }

    /// The text that identifies the author among those of the same kind: an id, or the name of the operating system's
    /// user. All hosts have the text `host`, because they act alike.
    pub fn id(&self) -> String {
        match self {
            Self::Account { id, .. } | Self::ApiKey { id, .. } | Self::ConnectSession { id, .. } => {
                id.to_string()
            }
            Self::CommandLine { user } => user.clone(),
            Self::Host => self.kind().to_owned(),
        }
    }

    /// The name that a person recognizes: an email address, the name of a key, or the end user's id.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Account { email, .. } => Some(email),
            Self::ApiKey { name, .. } => Some(name),
            Self::ConnectSession { end_user_id, .. } => end_user_id.as_deref(),
            Self::CommandLine { user } => Some(user),
            Self::Host => None,
        }
    }

    /// The name, or the id of an author without a name.
    pub fn display_name(&self) -> String {
        self.name().map_or_else(|| self.id(), str::to_owned)
    }
}
