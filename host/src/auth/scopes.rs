//! What a key may do. The names are those that existing clients' keys carry.

/// One right. A key has it by its own name, by the name of its group (`environment:records:*`), or by
/// `environment:*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    IntegrationsList,
    IntegrationsRead,
    IntegrationsReadCredentials,
    IntegrationsCreate,
    ConnectionsList,
    ConnectionsRead,
    ConnectionsReadCredentials,
    ConnectionsCreate,
    SyncsRead,
    SyncsExecute,
    RecordsRead,
    RecordsWrite,
    ActionsExecute,
    VariablesRead,
    VariablesWrite,
    Deploy,
}

impl Scope {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::IntegrationsList => "environment:integrations:list",
            Self::IntegrationsRead => "environment:integrations:read",
            Self::IntegrationsReadCredentials => "environment:integrations:read_credentials",
            Self::IntegrationsCreate => "environment:integrations:create",
            Self::ConnectionsList => "environment:connections:list",
            Self::ConnectionsRead => "environment:connections:read",
            Self::ConnectionsReadCredentials => "environment:connections:read_credentials",
            Self::ConnectionsCreate => "environment:connections:create",
            Self::SyncsRead => "environment:syncs:read",
            Self::SyncsExecute => "environment:syncs:execute",
            Self::RecordsRead => "environment:records:read",
            Self::RecordsWrite => "environment:records:write",
            Self::ActionsExecute => "environment:actions:execute",
            Self::VariablesRead => "environment:variables:read",
            Self::VariablesWrite => "environment:variables:write",
            Self::Deploy => "environment:deploy",
        }
    }
}

/// The rights of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scopes(Vec<String>);

/// The sets of rights that a key is usually made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ScopePreset {
    /// Everything.
    Full,
    /// Reading everything but credentials and variables.
    ReadOnly,
}

impl Scopes {
    pub fn new(names: Vec<String>) -> Self {
        Self(names)
    }

    pub fn allow(&self, scope: Scope) -> bool {
        self.0.iter().any(|held| match held.strip_suffix('*') {
            Some(group) => scope.as_str().starts_with(group),
            None => held == scope.as_str(),
        })
    }
}

impl ScopePreset {
    pub fn scopes(self) -> Vec<String> {
        let names: &[&str] = match self {
            Self::Full => &["environment:*"],
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
            ],
        };
        names.iter().map(|name| (*name).to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_is_held_by_name_by_group_or_by_all() {
        let held = |names: &[&str]| Scopes::new(names.iter().map(|name| (*name).to_owned()).collect());
        assert!(held(&["environment:records:read"]).allow(Scope::RecordsRead));
        assert!(held(&["environment:records:*"]).allow(Scope::RecordsWrite));
        assert!(held(&["environment:*"]).allow(Scope::Deploy));
        assert!(!held(&["environment:records:read"]).allow(Scope::RecordsWrite));
        assert!(!held(&["environment:connections:read"]).allow(Scope::ConnectionsReadCredentials));
        assert!(!held(&[]).allow(Scope::RecordsRead));
    }

    #[test]
    fn read_only_reads_no_secrets() {
        let scopes = Scopes::new(ScopePreset::ReadOnly.scopes());
        for denied in
            [Scope::ConnectionsReadCredentials, Scope::VariablesRead, Scope::ActionsExecute, Scope::Deploy]
        {
            assert!(!scopes.allow(denied), "{denied:?}");
        }
        assert!(scopes.allow(Scope::RecordsRead));
    }
}
