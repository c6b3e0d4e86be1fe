//! Bundles as `syncline build` writes them, and variations of them.

use super::{Shop, repository};

#[derive(Clone)]
pub struct Bundle {
    integration: String,
    content: syncline_config::bundle::Bundle,
}

impl Bundle {
    /// An example that `make guests` has built.
    pub fn example(name: &str) -> Self {
        Self::built(&format!("examples/{name}"), name)
    }

    /// A test guest that `make guests` has built.
    pub fn guest(name: &str) -> Self {
        Self::built(&format!("tests/guests/{name}"), name)
    }

    fn built(project: &str, integration: &str) -> Self {
        let path = repository(project).join("build/bundle.tar");
        let bytes = std::fs::read(&path)
            .unwrap_or_else(|_| panic!("{} does not exist; run `make guests` to build it", path.display()));
        let content = syncline_config::bundle::Bundle::read(&bytes).unwrap_or_else(|error| {
            panic!("{}: {error}; run `make guests` to build it again", path.display())
        });
        Self { integration: integration.to_owned(), content }
    }

    /// The integration that the bundle contains.
    pub fn integration(&self) -> &str {
        &self.integration
    }

    /// Renames the bundle and its integration, and points the integration to another provider of the catalogue.
    pub fn for_integration(mut self, key: &str, provider: &str) -> Self {
        let config = self
            .content
            .config
            .replace(&format!("[integrations.{}", self.integration), &format!("[integrations.{key}"));
        let name = format!("name = \"{}\"", self.integration);
        self.content.config = config.replacen(&name, &format!("name = \"{key}\""), 1);
        self.integration = key.to_owned();
        self.replace("provider = \"unauthenticated\"", &format!("provider = \"{provider}\""))
    }

    /// Replaces `from`, which must occur exactly once in the configuration, with `to`.
    #[track_caller]
    pub fn replace(mut self, from: &str, to: &str) -> Self {
        let config = &self.content.config;
        assert_eq!(config.matches(from).count(), 1, "`{from}` in the bundle's configuration:\n{config}");
        self.content.config = config.replace(from, to);
        self
    }

    /// Adds a limit such as `cpu = "1s"` to an action.
    #[track_caller]
    pub fn limit(self, action: &str, limit: &str) -> Self {
        let table = format!("[integrations.{}.actions.{action}]", self.integration);
        self.replace(&table, &format!("{table}\nlimits = {{ {limit} }}"))
    }

    /// Removes the actions, which are last in the configuration.
    pub fn without_actions(mut self) -> Self {
        let table = format!("[integrations.{}.actions.", self.integration);
        let config = &mut self.content.config;
        config.truncate(config.find(&table).expect("it has actions"));
        self
    }

    /// Removes all functions.
    pub fn without_functions(mut self) -> Self {
        let table = format!("[integrations.{}.syncs.", self.integration);
        let config = &mut self.content.config;
        config.truncate(config.find(&table).expect("it has syncs"));
        self
    }

    /// Adds `track_deletes` to a sync.
    #[track_caller]
    pub fn tracking_deletes(self, sync: &str) -> Self {
        let table = format!("[integrations.{}.syncs.{sync}]", self.integration);
        self.replace(&table, &format!("{table}\ntrack_deletes = true"))
    }

    /// Points the integration to the shop instead of the real provider.
    pub fn at(self, shop: &Shop) -> Self {
        self.at_address(shop.base_url())
    }

    pub fn at_address(self, base_url: &str) -> Self {
        let table = format!("[integrations.{}]", self.integration);
        self.replace(&table, &format!("{table}\nbase_url = \"{base_url}\""))
    }

    /// Writes a project with this configuration and component.
    pub fn write_project(&self, folder: &std::path::Path) {
        let bundle = self.clone().replace("component = \".\"", "component = \"component.wasm\"");
        std::fs::write(folder.join("syncline.toml"), bundle.content.config).expect("the folder is writable");
        std::fs::write(folder.join("component.wasm"), self.component()).expect("the folder is writable");
    }

    /// Replaces the component with other bytes.
    pub fn with_component(mut self, component: &[u8]) -> Self {
        self.content.components.values_mut().for_each(|wasm| *wasm = component.to_vec());
        self
    }

    pub fn component(&self) -> &[u8] {
        self.content.components.values().next().expect("a bundle has a component")
    }

    pub fn to_tar(&self) -> Vec<u8> {
        self.content.write().expect("writing to memory succeeds")
    }
}
