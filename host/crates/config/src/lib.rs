//! The configuration file `syncline.toml`, and bundles of it with its components.
//!
//! [`parse`] reads the whole file and reports every mistake with its place. Callers add mistakes that need other
//! information, such as whether a component contains a sync or whether a provider exists. For this purpose,
//! [`ConfigFile`] knows the place of each key and value.

use std::io;
use std::sync::Arc;
use std::time::Duration;

pub mod bundle;
mod capabilities;
mod diagnostics;
mod environment;
mod frequency;
#[cfg(test)]
mod fuzz;
mod integrations;
mod limits;
mod models;
mod spec;
mod table;

pub use capabilities::{Capability, CapabilityKind, added_capabilities};
pub use diagnostics::{ConfigProblem, Diagnostics, Span, did_you_mean};
pub use frequency::{Frequency, FrequencyError, MINIMUM_INTERVAL, Unit};
pub use limits::LimitOverrides;
pub use limits::{milliseconds, period};
pub use spec::{
    ActionSpec, Concurrency, DeletionHold, FunctionKind, IntegrationSpec, LifecycleEvent, LifecycleSpec,
    SyncConfig, SyncSpec, WebhookSpec, table_of,
};

use diagnostics::SourceFile;
use environment::read_environment;
use integrations::read_integrations;
use models::{Uses, check_models, read_models};
use table::{Locations, Table, root};

/// Name of the file in a project and in a bundle.
pub const FILE_NAME: &str = "syncline.toml";

/// Stack size of the parser's thread, in bytes. Only the used part occupies memory.
const STACK_BYTES: usize = 64 << 20;

/// A file without mistakes of its own.
#[derive(Debug, Clone)]
pub struct ConfigFile {
    pub config: SyncConfig,
    file: Arc<SourceFile>,
    places: Locations,
}

/// Parses a file. `name` is the file's name in messages. `schema_files` reads the JSON Schemas that the file names,
/// by their path relative to the file's folder.
pub fn parse(
    name: &str,
    text: &str,
    schema_files: &(dyn Fn(&str) -> io::Result<String> + Sync),
) -> Result<ConfigFile, Diagnostics> {
    // Nested tables with keys such as `a.b.c` produce a tree with thousands of levels. Dropping such a tree needs
    // more stack than the calling thread has.
    std::thread::scope(|scope| {
        let reader = std::thread::Builder::new().stack_size(STACK_BYTES);
        let reader = reader.spawn_scoped(scope, || read(name, text, schema_files));
        let reader = reader.expect("the system can start another thread");
        reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn read(
    name: &str,
    text: &str,
    schema_files: &dyn Fn(&str) -> io::Result<String>,
) -> Result<ConfigFile, Diagnostics> {
    let file = Arc::new(SourceFile { name: name.to_owned(), text: text.to_owned() });
    let mut found = Diagnostics::new(Arc::clone(&file));
    let tree = root(text, &mut found);
    if !found.is_empty() {
        return Err(found);
    }
    let mut table = Table::root(&tree);
    let help = "add a first line such as `name = \"my-project\"`; a deployment replaces the previous one of the same name";
    let name = table.required(&mut found, "name", "the file", help);
    let mut uses = Uses::default();
    let models = table
        .table(&mut found, "models")
        .map(|table| read_models(table, &mut found, &mut uses, schema_files));
    let models = models.unwrap_or_default();
    let integrations = table.table(&mut found, "integrations");
    let integrations =
        integrations.map(|table| read_integrations(table, &mut found, &mut uses)).unwrap_or_default();
    let environment = table.table(&mut found, "environment");
    let environment = environment.map(|table| read_environment(table, &mut found)).unwrap_or_default();
    table.finish(&mut found);
    check_models(&models, &uses, &mut found);
    match (name, found.is_empty()) {
        (Some(name), true) => {
            let (models, keeping) = models.into_parts();
            let config = SyncConfig { name, environment, integrations, models, keeping };
            Ok(ConfigFile { config, file, places: Locations::of(&tree) })
        }
        _ => Err(found),
    }
}

impl ConfigFile {
    /// Returns an empty list for further mistakes of this file.
    pub fn diagnostics(&self) -> Diagnostics {
        Diagnostics::new(Arc::clone(&self.file))
    }

    /// Returns the place of a key, such as `["integrations", "stripe", "syncs", "customers"]`, or the place of its
    /// nearest existing parent.
    pub fn key(&self, path: &[&str]) -> Span {
        self.places.find(path).key.clone()
    }

    /// Returns the place of a key's value. The key of a list's element is its index.
    pub fn value(&self, path: &[&str]) -> Span {
        self.places.find(path).value.clone()
    }

    /// Adds a mistake for each sync that runs more often than the operator allows.
    pub fn check_frequencies(&self, minimum: Duration, found: &mut Diagnostics) {
        for integration in &self.config.integrations {
            for sync in &integration.syncs {
                if let Err(error) = sync.frequency.check_minimum(minimum) {
                    let path =
                        ["integrations", integration.key.as_str(), "syncs", sync.name.as_str(), "runs"];
                    found.add(self.value(&path), error.to_string(), None);
                }
            }
        }
    }

    pub fn text(&self) -> &str {
        &self.file.text
    }

    /// Returns the paths of the schema files that the models name.
    pub fn schema_paths(&self) -> impl Iterator<Item = &str> {
        self.config.models.values().filter_map(|model| match model {
            syncline_model::Model::Schema { file, .. } => Some(file.as_str()),
            syncline_model::Model::Object(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use chrono_tz::Tz;
    use serde_json::json;

    use super::*;
    use syncline_model::{Keeping, Model, OnBadRecord, Shape};

    const SHOP: &str = r#"
name = "shop"

[models.Customer]
id = "string"
email = "string?"
state = "enum(active, 'past due')"
address = { street = "string", "zip?" = ["integer"], strict = true }
orders = "Order[]"

[models.Order]
id = "integer"
schema = "string"
lines = [{ sku = "string", parent = "Order?" }]

[models.Invoice]
schema = "schemas/invoice.json"

[integrations.stripe]
provider = "stripe-api-key"
component = "stripe"
env = ["REGION"]
allow_hosts = ["files.stripe.com"]
base_url = "http://127.0.0.1:4010"

[integrations.stripe.syncs.customers]
description = "All customers"
runs = "0 6 * * *"
timezone = "Europe/Berlin"
model = "Customer"
track_deletes = true
auto_start = false
limits = { cpu = "10s", wall = "2m", memory = "128MB", records = 1_000 }

[integrations.stripe.syncs.invoices]
runs = "every half hour"
models = ["Invoice", "Order"]

[integrations.stripe.actions.create-customer]
input = { email = "string", "name?" = "string" }
output = "Customer"
credentials = true

[integrations.stripe.webhooks.events]
subscriptions = ["customer.updated"]
models = ["Customer"]

[integrations.stripe.lifecycle.greet]
event = "connection-created"
"#;

    fn files(path: &str) -> io::Result<String> {
        match path {
            "schemas/invoice.json" => Ok(r#"{"type": "object"}"#.to_owned()),
            "broken.json" => Ok("{".to_owned()),
            "far.json" => Ok(r#"{"$ref": "https://example.com/x.json"}"#.to_owned()),
            "deep.json" => Ok(format!("{}{{}}{}", "{\"not\":".repeat(100), "}".repeat(100))),
            "endless.json" => Ok(r##"{"allOf": [{"$ref": "#"}]}"##.to_owned()),
            "costly.json" => {
                let link = |n| {
                    format!(
                        r##""a{n}": {{"allOf": [{{"$ref": "#/$defs/a{0}"}}, {{"$ref": "#/$defs/a{0}"}}]}}"##,
                        n + 1
                    )
                };
                let links: Vec<String> = (0..40).map(link).collect();
                Ok(format!(r##"{{"$ref": "#/$defs/a0", "$defs": {{{}, "a40": {{}}}}}}"##, links.join(", ")))
            }
            _ => Err(io::Error::from(io::ErrorKind::NotFound)),
        }
    }

    fn shop() -> ConfigFile {
        parse("syncline.toml", SHOP, &files).unwrap_or_else(|mistakes| panic!("{mistakes}"))
    }

    /// Returns the mistakes of a text, after a first line with the name.
    fn mistakes(text: &str) -> Vec<String> {
        let text = format!("name = \"shop\"\n{text}");
        let found = parse("syncline.toml", &text, &files).map(|_| ()).unwrap_err();
        found.to_string().lines().map(|line| line.trim_start_matches("syncline.toml:").to_owned()).collect()
    }

    #[test]
    fn a_complete_file_is_read() {
        let config = shop().config;
        assert_eq!(config.name.as_str(), "shop");
        let [stripe] = &config.integrations[..] else { panic!("{config:?}") };
        assert_eq!(
            stripe.functions().map(|(kind, name)| format!("{kind} {name}")).collect::<Vec<_>>(),
            [
                "sync customers",
                "sync invoices",
                "action create-customer",
                "webhook events",
                "lifecycle greet",
            ]
        );
        let customers = &stripe.syncs[0];
        assert_eq!(customers.frequency.to_string(), "0 6 * * *");
        assert_eq!(customers.timezone, Tz::Europe__Berlin);
        assert!(customers.track_deletes && !customers.auto_start && !customers.credentials);
        let limits = LimitOverrides {
            cpu_ms: Some(10_000),
            wall_ms: Some(120_000),
            memory_bytes: Some(128 << 20),
            records: Some(1_000),
            ..LimitOverrides::default()
        };
        assert_eq!(customers.limits, limits);
        let invoices = &stripe.syncs[1];
        assert_eq!(invoices.frequency.to_string(), "every 30 minutes");
        assert!(invoices.auto_start && !invoices.track_deletes);
        assert_eq!(
            invoices.models.iter().map(syncline_types::ids::ModelName::as_str).collect::<Vec<_>>(),
            ["Invoice", "Order"]
        );
        assert_eq!(stripe.webhooks[0].subscriptions, ["customer.updated"]);
        assert_eq!(stripe.lifecycle[0].event, LifecycleEvent::ConnectionCreated);
        assert!(stripe.actions[0].credentials);
    }

    #[test]
    fn settings_of_the_environment_are_read_and_checked() {
        let text = r##"
name = "shop"
[environment]
webhook_url = "https://example.com/hooks"
callback_url = ""
on_sync_error = false
connect_ui_primary_color = "#1a7f37"
"##;
        let change = parse("syncline.toml", text, &files).unwrap().config.environment;
        assert_eq!(
            serde_json::to_value(change).unwrap(),
            json!({
                "webhook_url": "https://example.com/hooks", "callback_url": null, "on_sync_error": false,
                "connect_ui_primary_color": "#1a7f37",
            })
        );
        assert_eq!(
            mistakes(
                "[environment]\nwebhook_url = \"example\"\non_sync_errors = true\nconnect_ui_title = 5\non_auth_creation = \"no\"\n"
            ),
            [
                "3:15: `webhook_url` must be a URL such as https://example.com/hooks, at most 2048 bytes long",
                "4:1: unknown key `on_sync_errors`; did you mean `on_sync_error`?",
                "5:20: `connect_ui_title` must be a string, got integer",
                "6:20: `on_auth_creation` must be true or false, got string",
            ]
        );
    }

    #[test]
    fn the_example_in_the_manual_is_valid() {
        let manual = include_str!("../../../../docs/reference/syncline-toml.md");
        let example = manual.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        let file = parse("syncline.toml", example, &files).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        assert_eq!(file.config.integrations.len(), 1);
    }

    #[test]
    fn models_keep_their_order_and_check_records() {
        let config = shop().config;
        let name = "Customer".parse().unwrap();
        let Model::Object(customer) = &config.models[&name] else { panic!() };
        let fields: Vec<String> =
            customer.fields.iter().map(|field| format!("{}: {}", field.name, field.ty)).collect();
        assert_eq!(
            fields,
            [
                "id: string",
                "email: string?",
                "state: enum(active, past due)",
                "address: object",
                "orders: Order[]"
            ]
        );
        let shape = Shape::of_model(&name, &config.models).unwrap();
        let text = r#"{"id":"1","state":"past due","address":{"street":"x","zip":[1],"y":0},"orders":[{"id":1,"schema":"","lines":[{"sku":1}]}]}"#;
        assert_eq!(
            shape.check(text).unwrap_err().to_string(),
            "at /address/y: is not declared, and the model is strict; at /orders/0/lines/0/sku: expected string, got integer"
        );
    }

    #[test]
    fn a_configuration_is_stored_as_json() {
        let config = shop().config;
        let json = serde_json::to_value(&config).unwrap();
        assert_eq!(json["integrations"][0]["syncs"][0]["timezone"], json!("Europe/Berlin"));
        assert_eq!(json["integrations"][0]["lifecycle"][0]["event"], json!("connection-created"));
        assert_eq!(
            json["models"]["Order"]["object"]["fields"][2]["type"],
            json!({"array": {"object": {
                "fields": [
                    {"name": "sku", "type": "string"},
                    {"name": "parent", "type": {"optional": {"model": "Order"}}},
                ],
                "strict": false,
            }}})
        );
        assert_eq!(serde_json::from_value::<SyncConfig>(json).unwrap(), config);
    }

    #[test]
    fn all_mistakes_are_reported_at_once_with_corrections() {
        let text = r#"
[models.Customer]
emial = "strng"
order = "Ordr"
[models.Order]
id = "string"
n = 5
[integrations.stripe]
provder = "stripe-api-key"
component = "stripe"
[integrations.stripe.syncs.customers]
runs = "hourly"
model = "Customer"
track_deletes = "yes"
timezone = "Europe/Berln"
limits = { cpu = "10", requests = 0, memory = "8GB" }
[integrations.stripe.syncs.again]
runs = "every 5s"
model = "Customer"
[integrations.stripe.actions.create]
input = ["string", "string"]
limits = { wall = "1h" }
[integrations.stripe.lifecycle.greet]
event = "connected"
"#;
        assert_eq!(
            mistakes(text),
            [
                r#"3:9: model `Customer` has no `id`, and sync `customers` saves it; declare `id = "string"` or `id = "integer"`, which identifies the records"#,
                "4:9: `strng` is not a type; did you mean `string`?",
                "5:9: unknown model `Ordr`; did you mean `Order`?",
                r#"8:5: `n` must be a type, got integer; use a type such as "string?" or "Customer[]", or { … } for an object"#,
                r#"9:15: integration `stripe` has no `provider`; set a provider of the catalogue, such as `provider = "stripe-api-key"`"#,
                "10:1: unknown key `provder`; did you mean `provider`?",
                "13:8: `hourly` is not a frequency; use `every 5 minutes`, `every half hour`, `every day`, or cron such as `0 6 * * *`",
                "15:17: `track_deletes` must be true or false, got string",
                "16:12: unknown time zone `Europe/Berln`; did you mean `Europe/Berlin`?",
                r#"17:18: `cpu` must be a duration such as "10s" or "2m", got `10`"#,
                "17:35: `requests` must be a whole number above 0, got `0`",
                "17:47: `memory` must be at most 4GB, got `8GB`",
                "20:9: sync `customers` saves model `Customer`; use a separate model for this sync, because two syncs of a model would overwrite each other's records",
                r#"22:9: `input` is a list type with 2 elements; it must have exactly one; write the type of the elements once, such as [{ sku = "string" }]"#,
                "23:19: `wall` must be at most 15m, got `1h`",
                "25:9: `event` must not be `connected`; use `connection-created` or `connection-deleting` or `connection-validating`",
            ]
        );
    }

    #[test]
    fn invalid_toml_is_reported_with_its_place() {
        assert_eq!(
            mistakes("a = 1\na = 2\n[models\n"),
            ["3:1: invalid TOML: duplicate key", "4:8: invalid TOML: unclosed table, expected `]`",]
        );
    }

    #[test]
    fn schemas_are_read_and_checked() {
        let model = |line: &str| mistakes(&format!("[models.Invoice]\n{line}\n"));
        assert_eq!(
            model("schema = \"none.json\""),
            ["3:10: `none.json` could not be read: entity not found"]
        );
        assert_eq!(
            model("schema = \"broken.json\""),
            ["3:10: `broken.json` is not JSON: EOF while parsing an object at line 1 column 1"]
        );
        assert_eq!(
            model("schema = \"../x.json\""),
            [
                r#"3:10: `../x.json` leads out of the folder of this file; put schemas into this folder, such as "schemas/customer.json""#
            ]
        );
        assert!(
            model("schema = \"far.json\"")[0].starts_with("2:9: `far.json` is not a supported JSON Schema: ")
        );
        assert_eq!(
            model("schema = \"schemas/invoice.json\"\nid = \"string\""),
            [
                "4:1: `id` cannot be used together with `schema`; move it into the schema, or declare all fields here"
            ]
        );
    }

    #[test]
    fn schemas_that_are_too_deep_or_too_expensive_are_refused() {
        let model = |file: &str| mistakes(&format!("[models.Invoice]\nschema = \"{file}\"\n"));
        for (file, expected) in [
            (
                "deep.json",
                "3:10: `deep.json` has more than 100 nested lists and objects; move inner schemas to `$defs`",
            ),
            (
                "endless.json",
                "2:9: `endless.json` is not a supported JSON Schema: its references form an endless or nearly endless loop",
            ),
            (
                "costly.json",
                "2:9: `costly.json` is not a supported JSON Schema: its references, `allOf`, `anyOf` and similar keywords \
                 apply more than a billion subschemas to one value, and the maximum is 10000; let each schema refer to \
                 the next one only once",
            ),
        ] {
            assert_eq!(model(file), [expected]);
        }
    }

    /// A model with a field of this type.
    fn with_field(ty: &str) -> String {
        format!("[models.Deep]\nid = \"string\"\nx = {ty}\n")
    }

    #[test]
    fn types_that_are_too_deep_are_reported_with_their_place() {
        let help = "move the inner part to a separate model";
        for (ty, place) in [
            (
                format!("\"string{}\"", "[]".repeat(21)),
                "4:5: the type has more than 20 nested lists, objects and `?`",
            ),
            (
                format!("\"string{}\"", "[]".repeat(100_000)),
                "4:5: the type has more than 20 nested lists, objects and `?`",
            ),
            (
                format!("{}\"string\"{}", "[".repeat(21), "]".repeat(21)),
                "4:25: `x` has more than 20 nested lists and objects",
            ),
            (
                format!("[\"string{}\"]", "[]".repeat(20)),
                "4:6: `x` has more than 20 nested lists and objects",
            ),
            (
                format!("{}\"string\"{}", "{ a = ".repeat(21), " }".repeat(21)),
                "4:125: `a` has more than 20 nested lists and objects",
            ),
        ] {
            let reported = mistakes(&with_field(&ty));
            assert_eq!(reported, [format!("{place}; {help}")], "{}", &ty[..ty.len().min(80)]);
        }
        // Tables that are nested by dotted keys alone, deeper than the stack of a thread allows.
        let keys = "a.".repeat(75);
        let bomb = format!("{{ {keys}a = ").repeat(75) + "\"string\"" + &" }".repeat(75);
        let reported = mistakes(&with_field(&bomb));
        assert!(reported.len() == 1 && reported[0].contains("nested lists and objects"), "{reported:?}");
    }

    #[test]
    fn the_deepest_accepted_types_can_be_stored_and_read_back() {
        for ty in [
            format!("\"string{}\"", "[]?".repeat(10)),
            format!("{}\"enum(a)\"{}", "{ \"a?\" = ".repeat(20), " }".repeat(20)),
            format!("{}\"enum(a)[]\"{}", "[{ \"a?\" = ".repeat(9), " }]".repeat(9)),
        ] {
            let action = "[integrations.stripe]\nprovider = \"x\"\ncomponent = \"x\"\n[integrations.stripe.actions.act]";
            let text = format!("name = \"shop\"\n{}{action}\ninput = {ty}\noutput = {ty}\n", with_field(&ty));
            let file = parse("syncline.toml", &text, &files).unwrap_or_else(|mistakes| panic!("{mistakes}"));
            let stored = serde_json::to_string(&json!({ "in": [{ "more": &file.config }] })).unwrap();
            assert!(serde_json::from_str::<serde_json::Value>(&stored).is_ok(), "{ty}");
        }
    }

    #[test]
    fn long_chains_of_models_are_checked_without_recursion() {
        let link = |n: usize| format!("[models.M{n}]\nid = \"string\"\nnext = \"M{}\"\n", n + 1);
        let chain: String = (0..20_000).map(link).collect();
        let text = format!("name = \"shop\"\n{chain}[models.M20000]\nid = \"string\"\n");
        let file = parse("syncline.toml", &text, &files).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        let first: syncline_types::ids::ModelName = "M0".parse().unwrap();
        assert!(Shape::of_model(&first, &file.config.models).is_ok());
        let schema = syncline_model::json_schema::of_model(&first, &file.config.models);
        assert_eq!(schema["$defs"].as_object().unwrap().len(), 20_001);
        // Only the first of very many mistakes are reported.
        assert_eq!(mistakes(&chain.replace("M20000", "M0")).len(), 100);
    }

    #[test]
    fn a_sync_must_save_at_least_one_model() {
        let sync = |models: &str| {
            let integration = "[integrations.shop]\nprovider = \"x\"\ncomponent = \"x\"\n";
            mistakes(&format!("{integration}[integrations.shop.syncs.all]\nruns = \"every day\"\n{models}\n"))
        };
        let expected = "5:26: sync `all` has no `model`; set what it saves, such as `model = \"Customer\"`, or `models = […]` for several";
        assert_eq!(sync(""), [expected]);
        assert_eq!(sync("models = []"), [expected]);
    }

    #[test]
    fn a_base_url_must_not_contain_credentials_query_or_fragment() {
        let base_url = |url: &str| {
            mistakes(&format!(
                "[integrations.shop]\nprovider = \"x\"\ncomponent = \"x\"\nbase_url = \"{url}\"\n"
            ))
        };
        let help = "remove it; use an address such as \"https://api.example.com/v1\"";
        for (url, part) in [
            ("http://u:p@x/", "a user or a password"),
            ("http://:p@x/", "a user or a password"),
            ("http://x/?a=b", "a query"),
            ("http://x/#c", "a fragment"),
        ] {
            assert_eq!(base_url(url), [format!("5:12: `base_url` has {part}; {help}")]);
        }
        let expected =
            "5:12: `ftp://x` is not an http or https URL; use one such as \"https://api.example.com\"";
        assert_eq!(base_url("ftp://x"), [expected]);
    }

    #[test]
    fn numbers_out_of_range_are_reported() {
        let sync = |line: &str| {
            let integration =
                "[models.Item]\nid = \"string\"\n[integrations.shop]\nprovider = \"x\"\ncomponent = \"x\"\n";
            mistakes(&format!(
                "{integration}[integrations.shop.syncs.all]\nruns = \"every day\"\nmodel = \"Item\"\n{line}\n"
            ))
        };
        for (line, expected) in [
            (
                "hold_deletions_above = -0.1",
                "10:24: `hold_deletions_above` must be a number from 0 to 1, got `-0.1`",
            ),
            (
                "hold_deletions_above = nan",
                "10:24: `hold_deletions_above` must be a number from 0 to 1, got `nan`",
            ),
            (
                "hold_deletions_above = 2",
                "10:24: `hold_deletions_above` must be a number from 0 to 1, got `2`",
            ),
            ("limits = { requests = -1 }", "10:23: `requests` must be a whole number above 0, got `-1`"),
            ("limits = { requests = 0.5 }", "10:23: `requests` must be a whole number above 0, got `0.5`"),
        ] {
            assert_eq!(sync(line), [expected]);
        }
    }

    #[test]
    fn a_model_can_set_bad_records_aside() {
        let read = |line: &str| -> Vec<Keeping> {
            let model = format!("[models.Invoice]\n{line}\nschema = \"schemas/invoice.json\"\n");
            let file = parse("syncline.toml", &format!("name = \"shop\"\n{model}"), &files);
            let file = file.unwrap_or_else(|mistakes| panic!("{mistakes}"));
            file.config.keeping.into_values().collect()
        };
        let keeping = Keeping { on_bad_record: OnBadRecord::SetAside, encrypt: false };
        assert_eq!(read("on_bad_record = \"set_aside\""), [keeping]);
        assert!(read("on_bad_record = \"fail\"").is_empty());
        assert_eq!(
            mistakes("[models.Invoice]\non_bad_record = \"drop\"\n"),
            [
                r#"3:17: `on_bad_record` must be "fail" or "set_aside"; a field of this name can be declared as "on_bad_record?", or in a JSON Schema"#
            ]
        );
    }

    #[test]
    fn a_model_can_encrypt_its_payloads() {
        let read = |lines: &str| {
            let file =
                parse("syncline.toml", &format!("name = \"shop\"\n[models.Person]\n{lines}\n"), &files);
            file.unwrap_or_else(|mistakes| panic!("{mistakes}")).config
        };
        let sealed = Keeping { encrypt: true, ..Keeping::default() };
        assert_eq!(
            read("encrypt = true\nid = \"string\"").keeping.into_values().collect::<Vec<_>>(),
            [sealed]
        );
        assert_eq!(read("encrypt = true\nschema = \"schemas/invoice.json\"").keeping.len(), 1);
        assert!(read("encrypt = false").keeping.is_empty());
        let field = read("encrypt = \"boolean\"");
        assert!(field.keeping.is_empty(), "a type makes it a field");
        let Some(Model::Object(object)) = field.models.get("Person") else { panic!("{:?}", field.models) };
        assert!(object.field("encrypt").is_some());
    }

    #[test]
    fn a_model_that_no_value_can_match_is_a_mistake() {
        let loops = "[models.Aa]\nb = \"Bb\"\n[models.Bb]\na = { inner = \"Aa\" }\n[models.Cc]\nc = \"Cc[]\"\nd = \"Cc?\"\n";
        let help = "make a field of the cycle optional (`?`) or a list (`[]`)";
        assert_eq!(
            mistakes(loops),
            [
                format!("2:9: model `Aa` always contains itself, so no value can match it; {help}"),
                format!("4:9: model `Bb` always contains itself, so no value can match it; {help}"),
            ]
        );
    }

    #[test]
    fn callers_can_add_mistakes_with_their_place() {
        let file = shop();
        let mut found = file.diagnostics();
        assert!(found.clone().into_result().is_ok());
        found.add(file.value(&["integrations", "stripe", "allow_hosts", "0"]), "not a host", None);
        let help = Some("it has `customer`".to_owned());
        found.add(
            file.key(&["integrations", "stripe", "syncs", "customers"]),
            "the component has no sync `customers`",
            help,
        );
        assert_eq!(
            serde_json::to_value(&found).unwrap(),
            json!([
                {
                    "file": "syncline.toml", "line": 23, "column": 16,
                    "snippet": "allow_hosts = [\"files.stripe.com\"]",
                    "message": "not a host",
                },
                {
                    "file": "syncline.toml", "line": 26, "column": 28,
                    "snippet": "[integrations.stripe.syncs.customers]",
                    "message": "the component has no sync `customers`",
                    "help": "it has `customer`",
                },
            ])
        );
        let rendered = found.render();
        assert!(
            rendered.contains("syncline.toml:26:28") && rendered.contains("it has `customer`"),
            "{rendered}"
        );
        let gone = file.key(&["integrations", "stripe", "syncs", "gone", "runs"]);
        assert_eq!(&file.text()[gone], "syncs");
    }

    #[test]
    fn frequencies_respect_the_hosts_minimum() {
        let file = shop();
        let mut found = file.diagnostics();
        file.check_frequencies(MINIMUM_INTERVAL, &mut found);
        assert!(found.is_empty());
        file.check_frequencies(Duration::from_secs(3_600), &mut found);
        assert_eq!(
            found.to_string(),
            "syncline.toml:36:8: `every 30 minutes` is too frequent; the interval between two runs must be at least 1 hour"
        );
    }

    #[test]
    fn similar_names_are_suggested() {
        assert_eq!(did_you_mean("customers", ["customer", "orders"]), Some("customer"));
        assert_eq!(did_you_mean("Custmer", ["Order", "Customer"]), Some("Customer"));
        assert_eq!(did_you_mean("x", ["orders"]), None);
    }
}
