//! Who makes a change or reads credentials, for the audit log.

use std::net::IpAddr;

use uuid::Uuid;

/// The author of a change, and the request with which it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    pub identity: Identity,
    /// The address of the client's network connection. `None` if the change was not made through a host's API.
    pub address: Option<IpAddr>,
    /// The `X-Request-Id` of the request.
    pub request_id: Option<String>,
}

/// Who made a change.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// user. A host has none, because all hosts act alike.
    pub fn id(&self) -> Option<String> {
        match self {
            Self::Account { id, .. } | Self::ApiKey { id, .. } | Self::ConnectSession { id, .. } => {
                Some(id.to_string())
            }
            Self::CommandLine { user } => Some(user.clone()),
            Self::Host => None,
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
}
