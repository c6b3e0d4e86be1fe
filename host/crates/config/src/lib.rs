//! The sync configuration file `syncline.toml`, and bundles of it with its components.
//!
//! [`parse`] looks at the whole file and reports every mistake with its place. What only others can judge (does
//! the component have that sync, is there that provider) they add to the same list: [`ConfigFile`] knows
//! where each key and value stands.

use std::io;
use std::sync::Arc;
use std::time::Duration;

pub mod bundle;
mod diagnostics;
mod environment;
mod frequency;
mod integrations;
mod limits;
mod models;
mod spec;
mod table;

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

/// The name of the file in a project and in a bundle.
pub const FILE_NAME: &str = "syncline.toml";

/// Only what is used of it is there.
const STACK_BYTES: usize = 64 << 20;

/// A file without mistakes of its own.
#[derive(Debug, Clone)]
pub struct ConfigFile {
    pub config: SyncConfig,
    file: Arc<SourceFile>,
    places: Locations,
}

/// Reads a file. `name` is what mistakes call it; `schema_files` reads the JSON Schemas it names, by their
/// path from the file's folder.
pub fn parse(
    name: &str,
    text: &str,
    schema_files: &(dyn Fn(&str) -> io::Result<String> + Sync),
) -> Result<ConfigFile, Diagnostics> {
    // Keys such as `a.b.c` in tables in one another make a tree that is thousands of tables deep, and to let go of it
    // takes more stack than there is here.
    std::thread::scope(|scope| {
        let reader = std::thread::Builder::new().stack_size(STACK_BYTES);
        let reader = reader.spawn_scoped(scope, || read(name, text, schema_files));
        let reader = reader.expect("a thread can be started");
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
    let help = "add a first line such as `name = \"my-project\"`: deployments of one name replace each other";
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
    /// An empty list for further mistakes of this file.
    pub fn diagnostics(&self) -> Diagnostics {
        Diagnostics::new(Arc::clone(&self.file))
    }

    /// Where a key stands: `["integrations", "stripe", "syncs", "customers"]`. Where there is none, the key
    /// that it would be under.
    pub fn key(&self, path: &[&str]) -> Span {
        self.places.find(path).key.clone()
    }

    /// Where the value of a key stands. Elements of lists have their index for a key.
    pub fn value(&self, path: &[&str]) -> Span {
        self.places.find(path).value.clone()
    }

    /// Adds a mistake for each sync that would run more often than the operator allows.
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

    /// The schema files that the models name, by path, as they were read.
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
            "dear.json" => {
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

    /// The mistakes of a text, after a first line with the name.
    fn mistakes(text: &str) -> Vec<String> {
        let text = format!("name = \"shop\"\n{text}");
        let found = parse("syncline.toml", &text, &files).map(|_| ()).unwrap_err();
        found.to_string().lines().map(|line| line.trim_start_matches("syncline.toml:").to_owned()).collect()
    }

    #[test]
    fn a_whole_file_is_read() {
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
                "4:1: there is no key `on_sync_errors` here; did you mean `on_sync_error`?",
                "5:20: `connect_ui_title` must be a string, got integer",
                "6:20: `on_auth_creation` must be true or false, got string",
            ]
        );
    }

    #[test]
    fn the_example_in_the_manual_has_no_mistakes() {
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
    fn it_is_stored_as_json() {
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
    fn all_mistakes_are_told_at_once_with_what_would_be_right() {
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
                r#"3:9: model `Customer` has no `id`, and sync `customers` saves it; declare `id = "string"` or `id = "integer"`: records are told apart by it"#,
                "4:9: `strng` is not a type; did you mean `string`?",
                "5:9: there is no model `Ordr`; did you mean `Order`?",
                r#"8:5: `n` must be a type, got integer; write a type such as "string?" or "Customer[]", or { … } for an object"#,
                r#"9:15: integration `stripe` has no `provider`; name a provider of the catalogue, such as `provider = "stripe-api-key"`"#,
                "10:1: there is no key `provder` here; did you mean `provider`?",
                "13:8: `hourly` is not a frequency; write `every 5 minutes`, `every half hour`, `every day`, or cron such as `0 6 * * *`",
                "15:17: `track_deletes` must be true or false, got string",
                "16:12: there is no time zone `Europe/Berln`; did you mean `Europe/Berlin`?",
                r#"17:18: `cpu` must be a time such as "10s" or "2m", got `10`"#,
                "17:35: `requests` must be a whole number above 0, got `0`",
                "17:47: `memory` must be at most 4GB, got `8GB`",
                "20:9: sync `customers` saves model `Customer`; give this one a model of its own: the copies would overwrite each other",
                r#"22:9: `input` is a list type with 2 elements, not one; write the type of the elements once, such as [{ sku = "string" }]"#,
                "23:19: `wall` must be at most 15m, got `1h`",
                "25:9: `event` cannot be `connected`; write `connection-created` or `connection-deleting` or `connection-validating`",
            ]
        );
    }

    #[test]
    fn text_that_is_not_toml_is_told_with_its_place() {
        assert_eq!(
            mistakes("a = 1\na = 2\n[models\n"),
            ["3:1: this is not TOML: duplicate key", "4:8: this is not TOML: unclosed table, expected `]`",]
        );
    }

    #[test]
    fn schemas_are_read_and_checked() {
        let model = |line: &str| mistakes(&format!("[models.Invoice]\n{line}\n"));
        assert_eq!(model("schema = \"none.json\""), ["3:10: `none.json` cannot be read: entity not found"]);
        assert_eq!(
            model("schema = \"broken.json\""),
            ["3:10: `broken.json` is not JSON: EOF while parsing an object at line 1 column 1"]
        );
        assert_eq!(
            model("schema = \"../x.json\""),
            [
                r#"3:10: `../x.json` leads out of the folder of this file; keep schemas beside it, such as "schemas/customer.json""#
            ]
        );
        assert!(
            model("schema = \"far.json\"")[0].starts_with("2:9: `far.json` is not a usable JSON Schema: ")
        );
        assert_eq!(
            model("schema = \"schemas/invoice.json\"\nid = \"string\""),
            [
                "4:1: `id` stands beside a schema, which says everything about its model; move it into the schema, or declare all fields here"
            ]
        );
    }

    #[test]
    fn schemas_that_are_too_much_to_store_or_to_check_are_refused() {
        let model = |file: &str| mistakes(&format!("[models.Invoice]\nschema = \"{file}\"\n"));
        for (file, told) in [
            (
                "deep.json",
                "3:10: `deep.json` is more than 100 lists and objects deep; move what is inside to `$defs`",
            ),
            (
                "endless.json",
                "2:9: `endless.json` is not a usable JSON Schema: it refers to itself without an end, or nearly so",
            ),
            (
                "dear.json",
                "2:9: `dear.json` is not a usable JSON Schema: its references and its `allOf`, `anyOf` and the like say \
                 more than a billion subschemas to one value, and at most 10000 are taken; let each refer to the next no \
                 more than once",
            ),
        ] {
            assert_eq!(model(file), [told]);
        }
    }

    /// A model with a field of this type.
    fn with_field(ty: &str) -> String {
        format!("[models.Deep]\nid = \"string\"\nx = {ty}\n")
    }

    #[test]
    fn types_that_are_too_deep_are_told_with_their_place() {
        let help = "give what is inside a model of its own";
        for (ty, place) in [
            (
                format!("\"string{}\"", "[]".repeat(21)),
                "4:5: the type is more than 20 lists, objects and `?` deep",
            ),
            (
                format!("\"string{}\"", "[]".repeat(100_000)),
                "4:5: the type is more than 20 lists, objects and `?` deep",
            ),
            (
                format!("{}\"string\"{}", "[".repeat(21), "]".repeat(21)),
                "4:25: `x` is more than 20 lists and objects deep",
            ),
            (format!("[\"string{}\"]", "[]".repeat(20)), "4:6: `x` is more than 20 lists and objects deep"),
            (
                format!("{}\"string\"{}", "{ a = ".repeat(21), " }".repeat(21)),
                "4:125: `a` is more than 20 lists and objects deep",
            ),
        ] {
            let told = mistakes(&with_field(&ty));
            assert_eq!(told, [format!("{place}; {help}")], "{}", &ty[..ty.len().min(80)]);
        }
        // Tables in tables by their keys alone, more of them than the stack has room for.
        let keys = "a.".repeat(75);
        let bomb = format!("{{ {keys}a = ").repeat(75) + "\"string\"" + &" }".repeat(75);
        let told = mistakes(&with_field(&bomb));
        assert!(told.len() == 1 && told[0].contains("lists and objects deep"), "{told:?}");
    }

    #[test]
    fn the_deepest_types_that_are_taken_read_back_from_where_they_are_stored() {
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
    fn long_chains_of_models_are_checked_one_after_the_other() {
        let link = |n: usize| format!("[models.M{n}]\nid = \"string\"\nnext = \"M{}\"\n", n + 1);
        let chain: String = (0..20_000).map(link).collect();
        let text = format!("name = \"shop\"\n{chain}[models.M20000]\nid = \"string\"\n");
        let file = parse("syncline.toml", &text, &files).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        let first: syncline_types::ids::ModelName = "M0".parse().unwrap();
        assert!(Shape::of_model(&first, &file.config.models).is_ok());
        let schema = syncline_model::json_schema::of_model(&first, &file.config.models);
        assert_eq!(schema["$defs"].as_object().unwrap().len(), 20_001);
        // Of very many mistakes the first are told.
        assert_eq!(mistakes(&chain.replace("M20000", "M0")).len(), 100);
    }

    #[test]
    fn a_sync_saves_a_model_at_least() {
        let sync = |models: &str| {
            let integration = "[integrations.shop]\nprovider = \"x\"\ncomponent = \"x\"\n";
            mistakes(&format!("{integration}[integrations.shop.syncs.all]\nruns = \"every day\"\n{models}\n"))
        };
        let told = "5:26: sync `all` has no `model`; name what it saves, such as `model = \"Customer\"`, or several as `models = […]`";
        assert_eq!(sync(""), [told]);
        assert_eq!(sync("models = []"), [told]);
    }

    #[test]
    fn an_address_of_a_provider_is_an_address_alone() {
        let base_url = |url: &str| {
            mistakes(&format!(
                "[integrations.shop]\nprovider = \"x\"\ncomponent = \"x\"\nbase_url = \"{url}\"\n"
            ))
        };
        let help = "write the address alone, such as \"https://api.example.com/v1\"";
        for (url, part) in [
            ("http://u:p@x/", "a user or a password"),
            ("http://:p@x/", "a user or a password"),
            ("http://x/?a=b", "a query"),
            ("http://x/#c", "a fragment"),
        ] {
            assert_eq!(base_url(url), [format!("5:12: `base_url` has {part}; {help}")]);
        }
        let told = "5:12: `ftp://x` is not an address; write one such as \"https://api.example.com\"";
        assert_eq!(base_url("ftp://x"), [told]);
    }

    #[test]
    fn numbers_that_are_out_of_bounds_are_told() {
        let sync = |line: &str| {
            let integration =
                "[models.Item]\nid = \"string\"\n[integrations.shop]\nprovider = \"x\"\ncomponent = \"x\"\n";
            mistakes(&format!(
                "{integration}[integrations.shop.syncs.all]\nruns = \"every day\"\nmodel = \"Item\"\n{line}\n"
            ))
        };
        for (line, told) in [
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
            assert_eq!(sync(line), [told]);
        }
    }

    #[test]
    fn a_model_says_what_becomes_of_records_that_do_not_fit() {
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
    fn a_model_says_whether_its_payloads_are_sealed() {
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
    fn a_model_without_values_is_a_mistake() {
        let loops = "[models.Aa]\nb = \"Bb\"\n[models.Bb]\na = { inner = \"Aa\" }\n[models.Cc]\nc = \"Cc[]\"\nd = \"Cc?\"\n";
        let help = "make a field on the way optional (`?`) or a list (`[]`)";
        assert_eq!(
            mistakes(loops),
            [
                format!("2:9: model `Aa` contains itself without an end; {help}"),
                format!("4:9: model `Bb` contains itself without an end; {help}"),
            ]
        );
    }

    #[test]
    fn others_add_mistakes_where_they_belong() {
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
    fn frequencies_keep_to_the_hosts_minimum() {
        let file = shop();
        let mut found = file.diagnostics();
        file.check_frequencies(MINIMUM_INTERVAL, &mut found);
        assert!(found.is_empty());
        file.check_frequencies(Duration::from_secs(3_600), &mut found);
        assert_eq!(
            found.to_string(),
            "syncline.toml:36:8: `every 30 minutes` is too often; at least 1 hour must lie between two runs"
        );
    }

    #[test]
    fn names_that_are_near_are_suggested() {
        assert_eq!(did_you_mean("customers", ["customer", "orders"]), Some("customer"));
        assert_eq!(did_you_mean("Custmer", ["Order", "Customer"]), Some("Customer"));
        assert_eq!(did_you_mean("x", ["orders"]), None);
    }
}
