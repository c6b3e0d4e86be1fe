//! The capabilities that a bundle asks for: what its functions can do beyond sending requests to their provider.

use serde::Serialize;
use strum::{Display, IntoStaticStr};
use utoipa::ToSchema;

use super::spec::{IntegrationSpec, SyncConfig, table_of};
use syncline_types::functions::FunctionKind;

/// The name of the capability to read every environment variable.
const ALL_VARIABLES: &str = "*";

/// One capability of an integration's functions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
pub struct Capability {
    /// The unique key of the integration.
    pub integration: String,
    pub kind: CapabilityKind,
    /// The address, host, function, model or environment variable. `*` means all environment variables.
    pub name: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Display, IntoStaticStr, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum CapabilityKind {
    /// Requests with credentials go to this address instead of the provider's.
    BaseUrl,
    /// The function reads the credentials of the connection, such as `syncs.contacts`.
    Credentials,
    /// Functions send requests without credentials to this host.
    Host,
    /// Functions save records of this model.
    Model,
    /// Functions read this environment variable.
    Variable,
}

impl CapabilityKind {
    /// What the name of such a capability is, for messages.
    pub fn describe(self) -> &'static str {
        match self {
            Self::BaseUrl => "the base URL",
            Self::Credentials => "the credentials for",
            Self::Host => "the host",
            Self::Model => "the model",
            Self::Variable => "the environment variable",
        }
    }
}

impl SyncConfig {
    /// Returns the capabilities that the functions ask for, in a stable order.
    pub fn capabilities(&self) -> Vec<Capability> {
        let mut found: Vec<_> = self.integrations.iter().flat_map(IntegrationSpec::capabilities).collect();
        found.sort();
        found.dedup();
        found
    }
}

impl IntegrationSpec {
    fn capabilities(&self) -> Vec<Capability> {
        if self.functions().next().is_none() {
            return Vec::new();
        }
        let hosts = self.allow_hosts.iter().map(|host| (CapabilityKind::Host, host.clone()));
        let base_url = self.base_url.iter().map(|url| (CapabilityKind::BaseUrl, url.clone()));
        let variables = match &self.env {
            None => vec![ALL_VARIABLES.to_owned()],
            Some(names) => names.clone(),
        };
        let variables = variables.into_iter().map(|name| (CapabilityKind::Variable, name));
        let mut found: Vec<_> = hosts.chain(base_url).chain(variables).collect();
        for function in self.function_access() {
            let models = function.models.iter();
            found.extend(models.map(|model| (CapabilityKind::Model, model.to_string())));
            if function.credentials {
                let name = format!("{}.{}", table_of(function.kind), function.name);
                found.push((CapabilityKind::Credentials, name));
            }
        }
        let of_integration = |(kind, name)| Capability { integration: self.key.to_string(), kind, name };
        found.into_iter().map(of_integration).collect()
    }

    fn function_access(&self) -> Vec<FunctionAccess<'_>> {
        macro_rules! access {
            ($functions:expr, $kind:expr) => {
                $functions.iter().map(|function| FunctionAccess {
                    kind: $kind,
                    name: function.name.as_str(),
                    models: &function.models,
                    credentials: function.credentials,
                })
            };
        }
        access!(self.syncs, FunctionKind::Sync)
            .chain(access!(self.actions, FunctionKind::Action))
            .chain(access!(self.webhooks, FunctionKind::Webhook))
            .chain(access!(self.lifecycle, FunctionKind::Lifecycle))
            .collect()
    }
}

/// What one function can save and read.
struct FunctionAccess<'a> {
    kind: FunctionKind,
    name: &'a str,
    models: &'a [syncline_types::ids::ModelName],
    credentials: bool,
}

/// Returns the capabilities in `after` that `before` does not include.
pub fn added_capabilities(before: &[Capability], after: &[Capability]) -> Vec<Capability> {
    let covers = |old: &Capability, new: &Capability| {
        let is_variable = new.kind == CapabilityKind::Variable && old.kind == CapabilityKind::Variable;
        old == new || (is_variable && old.integration == new.integration && old.name == ALL_VARIABLES)
    };
    after.iter().filter(|new| !before.iter().any(|old| covers(old, new))).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    fn capabilities(lines: &str) -> Vec<Capability> {
        let text = format!(
            "name = \"shop\"\n[models.Order]\nid = \"string\"\n[models.Buyer]\nid = \"string\"\n\
             [integrations.shop]\nprovider = \"unauthenticated\"\ncomponent = \".\"\n{lines}"
        );
        let file = parse("syncline.toml", &text, &|_| unreachable!("no schema files"));
        file.unwrap_or_else(|mistakes| panic!("{}", mistakes.render())).config.capabilities()
    }

    fn texts(capabilities: &[Capability]) -> Vec<String> {
        capabilities.iter().map(|one| format!("{} {} {}", one.integration, one.kind, one.name)).collect()
    }

    const SYNC: &str = "[integrations.shop.syncs.orders]\nruns = \"every 1 hour\"\nmodel = \"Order\"\n";

    #[test]
    fn the_capabilities_follow_from_the_configuration() {
        let all = format!(
            "allow_hosts = [\"files.example.com\"]\nbase_url = \"https://api.example.com\"\nenv = [\"TEAM\"]\n{SYNC}\
             credentials = true\n[integrations.shop.actions.create]\nmodels = [\"Order\", \"Buyer\"]\n"
        );
        assert_eq!(
            texts(&capabilities(&all)),
            [
                "shop base_url https://api.example.com",
                "shop credentials syncs.orders",
                "shop host files.example.com",
                "shop model Buyer",
                "shop model Order",
                "shop variable TEAM"
            ]
        );
        assert_eq!(texts(&capabilities(SYNC)), ["shop model Order", "shop variable *"]);
        assert!(capabilities("allow_hosts = [\"files.example.com\"]").is_empty());
    }

    #[test]
    fn a_capability_is_new_if_the_version_before_does_not_include_it() {
        let with = |lines: &str| capabilities(&format!("{lines}\n{SYNC}"));
        let (all, one, two) = (with(""), with("env = [\"A\"]"), with("env = [\"A\", \"B\"]"));
        assert_eq!(texts(&added_capabilities(&one, &two)), ["shop variable B"]);
        assert_eq!(texts(&added_capabilities(&two, &one)), [""; 0]);
        assert_eq!(texts(&added_capabilities(&all, &two)), [""; 0]);
        assert_eq!(texts(&added_capabilities(&two, &all)), ["shop variable *"]);
        let other_base = with("base_url = \"https://elsewhere.example\"");
        let added = added_capabilities(&with("base_url = \"https://api.example.com\""), &other_base);
        assert_eq!(texts(&added), ["shop base_url https://elsewhere.example"]);
    }
}
