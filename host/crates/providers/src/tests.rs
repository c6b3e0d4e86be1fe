//! The catalogue through its public interface: the built-in files, an operator's files, and rejected files.

use serde_json::{Map, Value, json};

use super::*;

/// A valid file. Each test breaks one part of it.
const ACME: &str = r#"
name = "acme"
display_name = "Acme"
auth_mode = "API_KEY"
docs = "https://docs.acme.example/api"

[source]
address = "https://docs.acme.example/api/authentication"
checked_at = "2026-11-21"

[credentials.apiKey]
title = "API key"
description = "Found under Settings."
secret = true

[connection_config.subdomain]
title = "Subdomain"
description = "The first part of your address."
pattern = '[a-z0-9-]+'
suffix = ".acme.example"

[proxy]
base_url = "https://${connectionConfig.subdomain}.acme.example/api"

[proxy.headers]
x-api-key = "${apiKey}"
"#;

fn load_operator_file(text: &str) -> Result<Catalogue, CatalogueError> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("acme.toml"), text).unwrap();
    std::fs::write(folder.path().join("README.md"), "not a provider").unwrap();
    Catalogue::load(Some(folder.path()))
}

fn refusal(replace: &str, with: &str) -> String {
    assert!(ACME.contains(replace), "the file has no `{replace}`");
    load_operator_file(&ACME.replace(replace, with)).unwrap_err().to_string()
}

fn config(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn slug(text: &str) -> ProviderSlug {
    text.parse().unwrap()
}

#[test]
fn every_built_in_file_loads_and_is_listed() {
    let catalogue = Catalogue::load(None).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("catalogue");
    let mut in_folder: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    in_folder.sort();
    let providers = catalogue.list();
    let loaded: Vec<&str> = providers.iter().map(|provider| provider.name.as_str()).collect();
    assert_eq!(loaded, in_folder);
}

#[test]
fn the_payment_providers_key_is_the_user_name_of_basic_authentication() {
    let catalogue = Catalogue::load(None).unwrap();
    let stripe = catalogue.find(&slug("stripe-api-key")).unwrap();
    assert_eq!(stripe.auth_mode, AuthMode::Basic);
    assert_eq!(stripe.base_url(&Map::new()).unwrap().unwrap().as_str(), "https://api.stripe.com/");
    assert_eq!(stripe.credentials["password"].default_value.as_deref(), Some(""));
    assert!(catalogue.find(&slug("no-such-provider")).is_none());
}

#[test]
fn an_operators_file_adds_a_provider_or_replaces_one() {
    let catalogue = load_operator_file(ACME).unwrap();
    let acme = catalogue.find(&slug("acme")).unwrap();
    let url = acme.base_url(&config(json!({"subdomain": "shop-7"}))).unwrap().unwrap();
    assert_eq!(url.as_str(), "https://shop-7.acme.example/api");

    let folder = tempfile::tempdir().unwrap();
    let mine = ACME.replace("\"acme\"", "\"stripe-api-key\"");
    std::fs::write(folder.path().join("stripe-api-key.toml"), mine).unwrap();
    let catalogue = Catalogue::load(Some(folder.path())).unwrap();
    assert_eq!(catalogue.find(&slug("stripe-api-key")).unwrap().display_name, "Acme");
    assert_eq!(catalogue.list().len(), Shipped::iter().count());
}

#[test]
fn an_answer_is_checked_against_its_pattern_on_use() {
    let catalogue = load_operator_file(ACME).unwrap();
    let acme = catalogue.find(&slug("acme")).unwrap();
    let refused = |value| acme.base_url(&config(value)).unwrap_err().to_string();
    assert_eq!(
        refused(json!({"subdomain": "evil.com/x"})),
        "`subdomain` of the connection's configuration must match `[a-z0-9-]+`"
    );
    assert_eq!(
        refused(json!({"subdomain": ""})),
        "the connection's configuration has no `subdomain`, which this provider needs; set it when the account is \
         connected or imported"
    );
    assert!(acme.base_url(&config(json!({"subdomain": 42}))).is_ok());
}

#[test]
fn clients_do_not_see_the_source_of_an_entry() {
    let catalogue = load_operator_file(ACME).unwrap();
    let shown = serde_json::to_value(catalogue.find(&slug("acme")).unwrap().as_ref()).unwrap();
    assert_eq!(
        shown,
        json!({
            "name": "acme",
            "display_name": "Acme",
            "auth_mode": "API_KEY",
            "docs": "https://docs.acme.example/api",
            "credentials": {"apiKey": {
                "type": "string", "title": "API key", "description": "Found under Settings.", "secret": true
            }},
            "connection_config": {"subdomain": {
                "type": "string", "title": "Subdomain", "description": "The first part of your address.",
                "pattern": "[a-z0-9-]+", "suffix": ".acme.example"
            }},
            "proxy": {
                "base_url": "https://${connectionConfig.subdomain}.acme.example/api",
                "headers": {"x-api-key": "${apiKey}"},
                "retry": {}
            }
        })
    );
}

#[test]
fn a_mistake_is_reported_with_file_and_key() {
    let text = refusal("secret = true", "secrets = true");
    assert!(text.contains("acme.toml"), "{text}");
    assert!(text.contains("unknown field `secrets`"), "{text}");
    assert!(refusal("API_KEY", "API KEY").contains("unknown variant `API KEY`"));
    assert!(refusal("[a-z0-9-]+", "[a-z").contains("is not a regular expression"));
    assert!(refusal("[a-z0-9-]+", "a)|(b").contains("is not a regular expression"));
    assert!(refusal("x-api-key", "\"x api key\"").contains("is not a valid header name"));
    assert!(refusal("${apiKey}", "${apikey}").contains("`${apikey}` is not a variable"));
}

#[test]
fn a_violated_rule_is_reported_with_its_key() {
    let broken = |replace, with, key: &str| {
        let text = refusal(replace, with);
        assert!(text.contains(&format!("is invalid at `{key}`")), "{text}");
    };
    broken("name = \"acme\"", "name = \"acne\"", "name");
    broken("docs = \"https:", "docs = \"ftp:", "docs");
    broken("pattern = '[a-z0-9-]+'", "", "proxy.base_url");
    broken(".acme.example/api\"", ".com\"", "proxy.base_url");
    broken("${connectionConfig.subdomain}", "${connectionConfig.shop}", "proxy.base_url");
    broken("pattern =", "optional = true\npattern =", "proxy.base_url");
    broken("pattern =", "example = \"A B\"\npattern =", "connection_config.subdomain.example");
    broken("${apiKey}", "${connectionConfig.key}", "proxy.headers.x-api-key");
    broken("${apiKey}", "${accessToken}", "proxy.headers.x-api-key");
    broken("x-api-key = \"${apiKey}\"", "", "proxy");
    broken("[credentials.apiKey]", "[credentials.key]", "credentials.apiKey");
    broken("API_KEY", "OAUTH2", "authorization_url");
    broken("auth_mode", "token_url = \"https://acme.example/token\"\nauth_mode", "token_url");
    broken(
        "[proxy.headers]",
        "[proxy.rate_limit]\nrequests = 0\nper_seconds = 1\n[proxy.headers]",
        "proxy.rate_limit",
    );
    broken("[proxy.headers]", "[proxy.paginate]\ntype = \"link\"\n[proxy.headers]", "proxy.paginate");
}

#[test]
fn only_an_operator_can_let_an_answer_choose_the_host() {
    let free = ACME
        .replace("${connectionConfig.subdomain}.acme.example", "${connectionConfig.subdomain}")
        .replace("[proxy]", "[proxy]\nfree_host = true");
    assert!(load_operator_file(&free).is_ok());
    let provider: Provider = toml::from_str(&free).unwrap();
    let broken = rules::check(&provider, "acme", Origin::Shipped).unwrap_err();
    assert_eq!(broken.key, "proxy.free_host");
}

#[test]
fn a_missing_folder_is_reported() {
    let error = Catalogue::load(Some(Path::new("/no/such/folder"))).unwrap_err();
    assert_eq!(error.to_string(), "could not read the provider folder `/no/such/folder`");
}

const ACME_WEBHOOK: &str = r#"
[webhook]
type = "json:/type"

[webhook.source]
address = "https://docs.acme.example/webhooks"
checked_at = "2026-11-21"

[webhook.verification]
kind = "signature"
algorithm = "hmac-sha256"
signature = "header:x-acme-signature"
encoding = "hex"
"#;

#[test]
fn a_webhook_that_cannot_be_verified_is_rejected_with_its_key() {
    let load = |change: &dyn Fn(&str) -> String| {
        load_operator_file(&format!("{ACME}{}", change(ACME_WEBHOOK))).map_err(|error| error.to_string())
    };
    assert!(load(&|text| text.to_owned()).is_ok());
    for (replace, with, says) in [
        ("encoding = \"hex\"", "encodes = \"hex\"", "unknown field `encodes`"),
        ("type = \"json:/type\"", "types = \"json:/type\"", "unknown field `types`"),
        ("\"json:/type\"", "\"type\"", "`type` must be a place such as `header:x-event`"),
        (
            "encoding = \"hex\"",
            "encoding = \"hex\"\nsigned = \"{timestamp}{body}\"",
            "webhook.verification.signed",
        ),
        (
            "encoding = \"hex\"",
            "encoding = \"hex\"\ntimestamp = { prefix = \"t=\" }",
            "webhook.verification.separator",
        ),
        ("encoding = \"hex\"", "encoding = \"hex\"\ntimestamp = {}", "webhook.verification.timestamp"),
        ("https://docs.acme.example/webhooks", "http://acme.example", "webhook.source.address"),
        (
            "encoding = \"hex\"",
            "encoding = \"hex\"\n[[webhook.route]]\nvalue = \"json:/a\"\nconnection = \"connection_config.a\"",
            "webhook.route.connection",
        ),
    ] {
        assert!(ACME_WEBHOOK.contains(replace), "{replace}");
        let refused = load(&|text| text.replace(replace, with)).unwrap_err();
        assert!(refused.contains(says), "{with}: {refused}");
        assert!(refused.contains("acme.toml"), "{refused}");
    }
}

#[test]
fn an_answer_from_a_browser_must_be_confirmed_before_webhooks_are_routed_by_it() {
    let urls = "authorization_url = \"https://acme.example/a\"\ntoken_url = \"https://acme.example/t\"\n";
    let acme = ACME
        .replace("API_KEY", "OAUTH2")
        .replace("[source]", &format!("{urls}[source]"))
        .replace("x-api-key = \"${apiKey}\"", "");
    let realm = "[connection_config.realm]\ntitle = \"R\"\ndescription = \"R.\"\npattern = '\\d+'\n\
                 automated = true\nfrom_redirect = \"realm\"\n";
    let route = "[[webhook.route]]\nvalue = \"json:/realm\"\nconnection = \"connection_config.realm\"";
    let entry = |verification: &str| {
        let acme = acme.replace("[proxy]", &format!("{realm}[proxy]\n{verification}"));
        load_operator_file(&format!("{acme}{ACME_WEBHOOK}{route}")).map_err(|error| error.to_string())
    };
    let asks = |endpoint: &str| format!("verification = {{ method = \"GET\", endpoint = \"{endpoint}\" }}");
    assert!(entry(&asks("/company/${connectionConfig.realm}")).is_ok());
    for (verification, key) in [
        (String::new(), "webhook.route.connection"),
        (asks("/me"), "webhook.route.connection"),
        (asks("/${connectionConfig.realm}/${connectionConfig.other}"), "proxy.verification.endpoint"),
        (asks("/${connectionConfig.realm}/${accessToken}"), "proxy.verification.endpoint"),
    ] {
        let refused = entry(&verification).unwrap_err();
        assert!(refused.contains(&format!("is invalid at `{key}`")), "{verification}: {refused}");
    }
}

#[test]
fn the_manual_lists_every_provider_with_webhooks() {
    let manual = include_str!("../../../../docs/reference/provider-webhooks.md");
    let (_, table) = manual.split_once("## Providers\n").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let first_cells = table.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let listed = first_cells
        .flat_map(|cell| cell.split(", "))
        .filter_map(|name| name.strip_prefix('`')?.strip_suffix('`'));
    let mut listed: Vec<&str> = listed.collect();
    listed.sort_unstable();
    let catalogue = Catalogue::load(None).unwrap();
    let providers = catalogue.list();
    let taken = providers.iter().filter(|provider| provider.webhook.is_some());
    let taken: Vec<&str> = taken.map(|provider| provider.name.as_str()).collect();
    assert_eq!(listed, taken);
    assert!(taken.len() >= 25);
}
