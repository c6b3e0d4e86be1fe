//! `[integrations.KEY]` and the functions in it.

use std::collections::BTreeMap;

use chrono_tz::{TZ_VARIANTS, Tz};
use url::Url;

use super::diagnostics::{Diagnostics, Span, did_you_mean};
use super::frequency::Frequency;
use super::limits::{LimitOverrides, bytes, milliseconds};
use super::models::{Uses, read_type};
use super::spec::{
    ActionSpec, Concurrency, FunctionKind, IntegrationSpec, LifecycleEvent, LifecycleSpec, SyncSpec,
    WebhookSpec, table_of,
};
use super::table::{Table, Text, Value};
use syncline_model::Type;
use syncline_types::ids::{FunctionName, IntegrationKey, ModelName};

/// The longest time that a client waits for an action, in milliseconds.
const MAX_ACTION_WALL_MS: u64 = 15 * 60_000;
/// The maximum that a 32-bit component can address.
const MAX_MEMORY_BYTES: u64 = 4 << 30;

pub(super) fn read_integrations(
    table: Table<'_>,
    found: &mut Diagnostics,
    uses: &mut Uses,
) -> Vec<IntegrationSpec> {
    let mut integrations = Vec::new();
    for (key, value) in table.entries() {
        let name = key.parse(found);
        let table = Table::of(value, &key, found);
        if let (Some(name), Some(table)) = (name, table) {
            integrations.extend(read_integration(name, table, found, uses));
        }
    }
    integrations
}

fn read_integration(
    key: IntegrationKey,
    mut table: Table<'_>,
    found: &mut Diagnostics,
    uses: &mut Uses,
) -> Option<IntegrationSpec> {
    let owner = format!("integration `{key}`");
    let help = "set a provider of the catalogue, such as `provider = \"stripe-api-key\"`";
    let provider = table.required(found, "provider", &owner, help);
    let help = "set its source folder or `.wasm` file, such as `component = \"stripe\"`";
    let component = table.required(found, "component", &owner, help);
    let env = table.texts(found, "env");
    let env = env.map(|names| names.into_iter().filter_map(|name| variable(&name, found)).collect());
    let allow_hosts = table.texts(found, "allow_hosts").unwrap_or_default();
    let allow_hosts = allow_hosts.into_iter().map(|host| host.text.to_owned()).collect();
    let base_url = table.text(found, "base_url").and_then(|url| http_url(&url, found));

    let mut runs = |key| table.count(found, key).map(|runs| u32::try_from(runs).unwrap_or(u32::MAX));
    let concurrency = Concurrency {
        runs: runs("max_concurrent_runs"),
        runs_per_connection: runs("max_concurrent_runs_per_connection"),
    };

    let mut owners = BTreeMap::new();
    let syncs = functions(&mut table, FunctionKind::Sync, found, uses, |function, table, found, _| {
        read_sync(function, table, &mut owners, found)
    });
    let actions = functions(&mut table, FunctionKind::Action, found, uses, read_action);
    let webhooks = functions(&mut table, FunctionKind::Webhook, found, uses, read_webhook);
    let lifecycle = functions(&mut table, FunctionKind::Lifecycle, found, uses, read_lifecycle);
    table.finish(found);
    Some(IntegrationSpec {
        key,
        provider: provider?,
        component: component?,
        env,
        allow_hosts,
        base_url,
        concurrency,
        syncs,
        actions,
        webhooks,
        lifecycle,
    })
}

/// The parts that all kinds of functions share.
struct Function {
    /// Kind and name for messages, such as "sync `customers`".
    title: String,
    name: FunctionName,
    description: Option<String>,
    models: Vec<(ModelName, Span)>,
    credentials: bool,
    limits: LimitOverrides,
}

fn functions<T>(
    integration: &mut Table<'_>,
    kind: FunctionKind,
    found: &mut Diagnostics,
    uses: &mut Uses,
    mut read: impl FnMut(Function, &mut Table<'_>, &mut Diagnostics, &mut Uses) -> Option<T>,
) -> Vec<T> {
    let mut functions = Vec::new();
    for (key, mut table) in integration.tables(found, table_of(kind)) {
        if let Some(name) = key.parse::<FunctionName>(found) {
            let title = format!("{kind} `{name}`");
            let description = table.text(found, "description").map(|text| text.text.to_owned());
            let models = models(&mut table, found);
            models.iter().for_each(|(model, span)| uses.save(model, span.clone(), title.clone()));
            let credentials = table.flag(found, "credentials", false);
            let limits = table.table(found, "limits").map(|limits| read_limits(limits, kind, found));
            let limits = limits.unwrap_or_default();
            let function = Function { title, name, description, models, credentials, limits };
            functions.extend(read(function, &mut table, found, uses));
            table.finish(found);
        }
    }
    functions
}

fn read_sync(
    function: Function,
    table: &mut Table<'_>,
    owners: &mut BTreeMap<ModelName, FunctionName>,
    found: &mut Diagnostics,
) -> Option<SyncSpec> {
    let is_empty = |models: Value<'_>| models.get_ref().as_array().is_some_and(|models| models.is_empty());
    if table.value("model").is_none() && table.value("models").is_none_or(is_empty) {
        let help = "set what it saves, such as `model = \"Customer\"`, or `models = […]` for several";
        found.add(table.span.clone(), format!("{} has no `model`", function.title), Some(help.to_owned()));
    }
    for (model, span) in &function.models {
        if let Some(owner) = owners.insert(model.clone(), function.name.clone()) {
            let help = "use a separate model for this sync, because two syncs of a model would overwrite each other's records";
            found.add(span.clone(), format!("sync `{owner}` saves model `{model}`"), Some(help.to_owned()));
        }
    }
    let help = "set how often it runs, such as `runs = \"every 5 minutes\"`";
    let frequency = table.required::<Frequency>(found, "runs", &function.title, help);
    let timezone = table.text(found, "timezone").and_then(|name| timezone(&name, found));
    let track_deletes = table.flag(found, "track_deletes", false);
    let full_every = table.text(found, "full_every");
    if let Some(text) = &full_every
        && !track_deletes
    {
        let message = format!("{} has `full_every` without `track_deletes`", function.title);
        let help =
            "add `track_deletes = true`: a full run finds the records that no longer exist at the provider";
        found.add(text.span.clone(), message, Some(help.to_owned()));
    }
    Some(SyncSpec {
        track_deletes,
        full_every: full_every.and_then(|text| text.parse(found)),
        hold_deletions_above: table.share(found, "hold_deletions_above"),
        hold_deletions_from: table.count(found, "hold_deletions_from"),
        auto_start: table.flag(found, "auto_start", true),
        frequency: frequency?,
        timezone: timezone.unwrap_or(Tz::UTC),
        name: function.name,
        description: function.description,
        models: names(function.models),
        credentials: function.credentials,
        limits: function.limits,
    })
}

fn read_action(
    function: Function,
    table: &mut Table<'_>,
    found: &mut Diagnostics,
    uses: &mut Uses,
) -> Option<ActionSpec> {
    let ordered = table.flag(found, "ordered", false);
    let mut ty = |key| -> Option<Type> { read_type(table.value(key)?, key, found, uses) };
    Some(ActionSpec {
        ordered,
        input: ty("input"),
        output: ty("output"),
        name: function.name,
        description: function.description,
        models: names(function.models),
        credentials: function.credentials,
        limits: function.limits,
    })
}

fn read_webhook(
    function: Function,
    table: &mut Table<'_>,
    found: &mut Diagnostics,
    _: &mut Uses,
) -> Option<WebhookSpec> {
    let subscriptions = table.texts(found, "subscriptions");
    let subscriptions =
        subscriptions.map(|texts| texts.into_iter().map(|text| text.text.to_owned()).collect());
    Some(WebhookSpec {
        subscriptions: subscriptions.unwrap_or_else(|| vec!["*".to_owned()]),
        name: function.name,
        description: function.description,
        models: names(function.models),
        credentials: function.credentials,
        limits: function.limits,
    })
}

fn read_lifecycle(
    function: Function,
    table: &mut Table<'_>,
    found: &mut Diagnostics,
    _: &mut Uses,
) -> Option<LifecycleSpec> {
    let events = LifecycleEvent::ALL.map(|event| (event.as_str(), event));
    let event = table.word(found, "event", &events);
    if event.is_none() && table.value("event").is_none() {
        let help = "set the event, such as `event = \"connection-created\"`";
        found.add(table.span.clone(), format!("{} has no `event`", function.title), Some(help.to_owned()));
    }
    Some(LifecycleSpec {
        event: event?,
        name: function.name,
        description: function.description,
        models: names(function.models),
        credentials: function.credentials,
        limits: function.limits,
    })
}

/// Reads `model = "…"` or `models = […]`.
fn models(table: &mut Table<'_>, found: &mut Diagnostics) -> Vec<(ModelName, Span)> {
    let one = table.text(found, "model");
    let several = table.texts(found, "models");
    if let (Some(one), Some(_)) = (&one, &several) {
        let help = "move it into `models`";
        found.add(one.span.clone(), "`model` and `models` cannot be used together", Some(help.to_owned()));
    }
    let texts = one.into_iter().chain(several.unwrap_or_default());
    texts.filter_map(|text| Some((text.parse(found)?, text.span))).collect()
}

fn names(models: Vec<(ModelName, Span)>) -> Vec<ModelName> {
    models.into_iter().map(|(name, _)| name).collect()
}

fn read_limits(mut table: Table<'_>, kind: FunctionKind, found: &mut Diagnostics) -> LimitOverrides {
    let max_wall = if kind == FunctionKind::Action { (MAX_ACTION_WALL_MS, "15m") } else { (u64::MAX, "") };
    let max_memory = (MAX_MEMORY_BYTES, "4GB");
    let mut time =
        |key, max| measure(&mut table, key, milliseconds, "a duration such as \"10s\" or \"2m\"", max, found);
    let (cpu_ms, wall_ms) = (time("cpu", max_wall), time("wall", max_wall));
    let idle_ms = if kind == FunctionKind::Sync { time("idle", (u64::MAX, "")) } else { None };
    let mut size =
        |key, max| measure(&mut table, key, bytes, "a size such as \"64KB\" or \"128MB\"", max, found);
    let none = (u64::MAX, "");
    let limits = LimitOverrides {
        cpu_ms,
        wall_ms,
        idle_ms,
        memory_bytes: size("memory", max_memory),
        log_bytes: size("log", none),
        output_bytes: size("output", none),
        response_bytes: size("response", none),
        batch_bytes: size("batch", none),
        record_bytes: size("record", none),
        requests: table.count(found, "requests"),
        records: table.count(found, "records"),
    };
    table.finish(found);
    limits
}

/// Reads a number with a unit, up to the given maximum.
fn measure(
    table: &mut Table<'_>,
    key: &'static str,
    read: fn(&str) -> Option<u64>,
    expected: &str,
    (max, max_text): (u64, &str),
    found: &mut Diagnostics,
) -> Option<u64> {
    let given = table.text(found, key)?;
    let amount = read(given.text);
    match amount {
        None => found.add(given.span, format!("`{key}` must be {expected}, got `{}`", given.text), None),
        Some(amount) if amount > max => {
            found.add(given.span, format!("`{key}` must be at most {max_text}, got `{}`", given.text), None);
        }
        Some(_) => {}
    }
    amount
}

fn variable(name: &Text<'_>, found: &mut Diagnostics) -> Option<String> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if name.text.is_empty() || !name.text.bytes().all(is_name) {
        let message = format!("`{}` is not a valid variable name", name.text);
        found.add(name.span.clone(), message, Some("use letters, digits and `_`".to_owned()));
        return None;
    }
    Some(name.text.to_owned())
}

fn http_url(given: &Text<'_>, found: &mut Diagnostics) -> Option<String> {
    let url = Url::parse(given.text);
    let url = url.ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    // Paths are appended to it, and credentials are configured elsewhere.
    let surplus = url.as_ref().and_then(|url| {
        let has_user = !url.username().is_empty() || url.password().is_some();
        let parts = [
            (has_user, "a user or a password"),
            (url.query().is_some(), "a query"),
            (url.fragment().is_some(), "a fragment"),
        ];
        parts.into_iter().find(|(is_present, _)| *is_present)
    });
    if let Some((_, part)) = surplus {
        let help = "remove it; use an address such as \"https://api.example.com/v1\"";
        found.add(given.span.clone(), format!("`base_url` has {part}"), Some(help.to_owned()));
        return None;
    }
    if url.is_none() {
        let message = format!("`{}` is not an http or https URL", given.text);
        found.add(
            given.span.clone(),
            message,
            Some("use one such as \"https://api.example.com\"".to_owned()),
        );
        return None;
    }
    Some(given.text.to_owned())
}

fn timezone(name: &Text<'_>, found: &mut Diagnostics) -> Option<Tz> {
    let zone = name.text.parse().ok();
    if zone.is_none() {
        let near = did_you_mean(name.text, TZ_VARIANTS.iter().map(|zone| zone.name()));
        let help = near
            .map_or("use one such as \"Europe/Berlin\"".to_owned(), |near| format!("did you mean `{near}`?"));
        found.add(name.span.clone(), format!("unknown time zone `{}`", name.text), Some(help));
    }
    zone
}
