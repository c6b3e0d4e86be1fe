//! The scopes of secret keys. Their names are those that keys of existing clients use.

use syncline_config::did_you_mean;

macro_rules! scopes {
    ($($name:ident => $text:literal,)+) => {
        /// One scope. A key has it by its own name, by the name of its group (`environment:records:*`), or by
        /// `environment:*`. Scopes for other environments start with `account:`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Scope {
            $($name,)+
        }

        impl Scope {
            pub const ALL: &[Self] = &[$(Self::$name),+];

            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }

        /// Each scope as a type, for use as a type parameter.
        pub mod rights {
            $(
                #[derive(Debug)]
                pub enum $name {}

                impl super::Right for $name {
                    const SCOPE: super::Scope = super::Scope::$name;
                }
            )+
        }
    };
}

scopes! {
    IntegrationsList => "environment:integrations:list",
    IntegrationsListFunctions => "environment:integrations:list_functions",
    IntegrationsRead => "environment:integrations:read",
    IntegrationsReadCredentials => "environment:integrations:read_credentials",
    IntegrationsCreate => "environment:integrations:create",
    IntegrationsUpdate => "environment:integrations:update",
    IntegrationsDelete => "environment:integrations:delete",
    ConnectionsList => "environment:connections:list",
    ConnectionsRead => "environment:connections:read",
    ConnectionsReadCredentials => "environment:connections:read_credentials",
    ConnectionsCreate => "environment:connections:create",
    ConnectionsUpdate => "environment:connections:update",
    ConnectionsDelete => "environment:connections:delete",
    ConnectSessionsWrite => "environment:connect_sessions:write",
    SyncsRead => "environment:syncs:read",
    SyncsExecute => "environment:syncs:execute",
    SyncsUpdate => "environment:syncs:update",
    VariantsCreate => "environment:syncs:variant:create",
    VariantsDelete => "environment:syncs:variant:delete",
    FunctionsList => "environment:functions:list",
    FunctionsRead => "environment:functions:read",
    RecordsRead => "environment:records:read",
    RecordsWrite => "environment:records:write",
    LogsRead => "environment:logs:read",
    ActionsExecute => "environment:actions:execute",
    Mcp => "environment:mcp",
    Proxy => "environment:proxy",
    VariablesRead => "environment:variables:read",
    VariablesWrite => "environment:variables:write",
    SettingsRead => "environment:settings:read",
    SettingsUpdate => "environment:settings:update",
    WebhookSigningKeyRead => "environment:webhook_signing_key:read",
    WebhookSigningKeyRotate => "environment:webhook_signing_key:rotate",
    WebhooksRead => "environment:webhooks:read",
    WebhooksRedeliver => "environment:webhooks:redeliver",
    Deploy => "environment:deploy",
    EnvironmentsCreate => "account:environments:create",
    EnvironmentsDelete => "account:environments:delete",
    ApiKeysCreate => "account:environments:api_keys:create",
    ApiKeysDelete => "account:environments:api_keys:delete",
    AccountsManage => "account:accounts:manage",
    AuditLogRead => "account:audit_log:read",
}

/// A type that represents a scope.
pub trait Right: Send + Sync + 'static {
    const SCOPE: Scope;
}

/// The scopes of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scopes(Vec<String>);

/// Common sets of scopes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ScopePreset {
    /// Everything in its environment.
    Full,
    /// Reading everything in its environment except credentials, variables and settings.
    ReadOnly,
    /// Everything, plus creating and deleting environments and their keys, and reading the audit log.
    Account,
}

/// A name that is not a scope.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown scope `{given}`{}", suggestion.map(|suggestion| format!("; did you mean `{suggestion}`?")).unwrap_or_default())]
pub struct UnknownScope {
    given: String,
    suggestion: Option<&'static str>,
}

impl Scopes {
    pub fn new(names: Vec<String>) -> Self {
        Self(names)
    }

    /// Parses names of scopes and groups of scopes, such as `environment:records:*`.
    pub fn parse(names: &[String]) -> Result<Self, UnknownScope> {
        for name in names {
            let is_known = match name.strip_suffix('*') {
                Some(group) => {
                    group.ends_with(':') && Scope::ALL.iter().any(|scope| scope.as_str().starts_with(group))
                }
                None => Scope::ALL.iter().any(|scope| scope.as_str() == name),
            };
            if !is_known {
                let suggestion = did_you_mean(name, Scope::ALL.iter().map(|scope| scope.as_str()));
                return Err(UnknownScope { given: name.clone(), suggestion });
            }
        }
        Ok(Self(names.to_vec()))
    }

    /// Whether these scopes include everything that `name` grants. `name` can be a group.
    pub fn cover(&self, name: &str) -> bool {
        self.0.iter().any(|held| match held.strip_suffix('*') {
            Some(group) => name.starts_with(group),
            None => held == name,
        })
    }

    pub fn names(&self) -> &[String] {
        &self.0
    }

    pub fn allow(&self, scope: Scope) -> bool {
        self.cover(scope.as_str())
    }
}

impl ScopePreset {
    pub fn scopes(self) -> Vec<String> {
        let names: &[&str] = match self {
            Self::Full => &["environment:*"],
            Self::Account => &["account:*", "environment:*"],
            Self::ReadOnly => &[
                "environment:integrations:list",
                "environment:integrations:read",
                "environment:integrations:list_functions",
                "environment:connections:list",
                "environment:connections:read",
                "environment:syncs:read",
                "environment:functions:list",
                "environment:functions:read",
                "environment:records:read",
                "environment:logs:read",
                "environment:webhooks:read",
            ],
        };
        names.iter().map(|name| (*name).to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_is_granted_by_name_by_group_or_by_wildcard() {
        let held = |names: &[&str]| Scopes::new(names.iter().map(|name| (*name).to_owned()).collect());
        assert!(held(&["environment:records:read"]).allow(Scope::RecordsRead));
        assert!(held(&["environment:records:*"]).allow(Scope::RecordsWrite));
        assert!(held(&["environment:*"]).allow(Scope::Deploy));
        assert!(!held(&["environment:records:read"]).allow(Scope::RecordsWrite));
        assert!(!held(&["environment:connections:read"]).allow(Scope::ConnectionsReadCredentials));
        assert!(!held(&["environment:*"]).allow(Scope::EnvironmentsCreate));
        assert!(held(&["account:*"]).allow(Scope::ApiKeysDelete));
        assert!(!held(&[]).allow(Scope::RecordsRead));
    }

    #[test]
    fn unknown_scopes_are_rejected_with_a_suggestion() {
        let parse = |name: &str| Scopes::parse(&[name.to_owned()]);
        for good in ["environment:deploy", "environment:syncs:variant:*", "environment:*", "account:*"] {
            assert!(parse(good).is_ok(), "{good}");
        }
        for bad in ["", "*", "environment", "environment:rec*", "environment:nothing:*", "records:read"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert_eq!(
            parse("environment:record:read").unwrap_err().to_string(),
            "unknown scope `environment:record:read`; did you mean `environment:records:read`?"
        );
    }

    #[test]
    fn the_read_only_preset_grants_no_access_to_secrets() {
        let scopes = Scopes::new(ScopePreset::ReadOnly.scopes());
        for denied in [
            Scope::ConnectionsReadCredentials,
            Scope::VariablesRead,
            Scope::SettingsRead,
            Scope::ActionsExecute,
        ] {
            assert!(!scopes.allow(denied), "{denied:?}");
        }
        assert!(scopes.allow(Scope::RecordsRead));
    }
}
