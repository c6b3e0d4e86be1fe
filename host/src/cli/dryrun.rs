//! `syncline dryrun`: runs one function against the provider, and shows what it would save.

mod connection;
mod printing;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde_json::Value;
use serde_json::value::RawValue;

use self::connection::{Connected, HostRecords};
use super::Done;
use super::client::HostArgs;
use super::local_runs::{LocalRunArgs, replay};
use super::project::{Opened, Project, folder, show};
use syncline_auth::StoredCredentials;
use syncline_config::{FunctionKind, IntegrationSpec, did_you_mean};
use syncline_egress::HostPort;
use syncline_engine::{KeptRecords, NoKeptRecords, ProjectFunction, RunData};
use syncline_providers::{AuthMode, Catalogue};
use syncline_recording::{Recorder, differences};
use syncline_sandbox::{ConnectionInfo, RunInfo};
use syncline_types::ids::{FunctionName, Variant};

#[derive(Debug, Args)]
pub(super) struct DryrunArgs {
    /// Name of the function
    function: FunctionName,
    /// Folder with the project's syncline.toml [default: the current folder]
    project: Option<PathBuf>,
    /// Integration of the function, if several have a function of this name
    #[arg(long, value_name = "KEY")]
    integration: Option<String>,
    /// Kind of the function, if the integration has several of this name
    #[arg(long, value_name = "KIND", value_parser = kind_parser())]
    kind: Option<FunctionKind>,
    /// Use the credentials, configuration, metadata, variables, checkpoint and records of this connection of a host
    #[arg(long, value_name = "ID")]
    connection: Option<String>,
    #[command(flatten)]
    host: HostArgs,
    /// Credentials as a JSON object, or a file that contains one
    #[arg(long, value_name = "FILE|JSON", conflicts_with = "connection")]
    credentials: Option<String>,
    /// Connection configuration as a JSON object
    #[arg(long, value_name = "JSON")]
    connection_config: Option<String>,
    /// Metadata of the connection as a JSON object
    #[arg(long, value_name = "JSON")]
    metadata: Option<String>,
    /// A variable of the environment; repeat the option for several
    #[arg(long = "variable", value_name = "NAME=VALUE", value_parser = parse_variable)]
    variables: Vec<(String, String)>,
    /// Input of the function as JSON
    #[arg(long, value_name = "JSON")]
    input: Option<String>,
    /// Checkpoint from which a sync continues, as a JSON object
    #[arg(long, value_name = "JSON", conflicts_with = "full")]
    checkpoint: Option<String>,
    /// Start a sync without a checkpoint
    #[arg(long)]
    full: bool,
    /// Variant of a sync
    #[arg(long, default_value = "base", value_name = "NAME")]
    variant: Variant,
    /// Write a recording of the run, which `syncline test` replays
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Private addresses that requests may go to, such as localhost:8420, separated by commas
    #[arg(long, env = "SYNCLINE_EGRESS_ALLOW", value_name = "HOST:PORT,…")]
    egress_allow: Option<String>,
    /// Folder with additional provider files, which override the built-in ones
    #[arg(long, env = "SYNCLINE_PROVIDERS_DIR", value_name = "FOLDER")]
    providers_dir: Option<PathBuf>,
    #[command(flatten)]
    local: LocalRunArgs,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: DryrunArgs) -> anyhow::Result<Done> {
    let project = match Project::open(&folder(args.project.clone())?)? {
        Opened::Project(project) => project,
        Opened::Mistakes(diagnostics) => {
            show(&diagnostics);
            return Ok(Done::WithMistakes);
        }
    };
    let (integration, kind) = find(&args, &project)?;
    let catalogue = Catalogue::load(args.providers_dir.as_deref())?;
    let Some(provider) = catalogue.find(&integration.provider) else {
        bail!(
            "the catalogue has no provider `{}`; `syncline providers list` shows all, and --providers-dir adds others",
            integration.provider
        );
    };
    let auth_mode = provider.auth_mode;
    let allow = args.egress_allow.as_deref().map(HostPort::parse_list).transpose();
    let allow = allow.context("--egress-allow or SYNCLINE_EGRESS_ALLOW is invalid")?.unwrap_or_default();
    let connected = match &args.connection {
        Some(id) => Some(Connected::fetch(&args.host, integration, id).await?),
        None => None,
    };
    let credentials = credentials(&args, auth_mode, connected.as_ref())?;
    let data = run_data(&args, integration, kind, connected.as_ref(), &credentials).await?;

    let wasm = project.build_component(integration)?;
    let runs = args.local.start(catalogue, allow)?;
    let component = runs.prepare(&wasm).await.context("the component is not valid")?;
    let config = &project.file.config;
    let function = ProjectFunction::find(config, integration, kind, &args.function, component)?;
    let function = Arc::new(function.context("the function was found before")?);
    let mut data = data;
    data.run.is_full = kind == FunctionKind::Sync && function.is_full(data.checkpoint.as_deref());
    data.input = data.input.or_else(|| function.own_input());
    let kept: Arc<dyn KeptRecords> = match connected {
        Some(connected) => {
            let key = args.local.record_metadata_key.clone();
            Arc::new(HostRecords::new(connected, integration, key))
        }
        None => Arc::new(NoKeptRecords),
    };
    let recorder = args.record.as_ref().map(|_| Recorder::start(usize::MAX));
    let report = runs.run(&function, data, &credentials, kept, recorder.as_ref()).await;
    let report = report.map_err(|unavailable| anyhow::anyhow!(unavailable.reason))?;

    if args.json {
        printing::print_json(&report)?;
    } else {
        printing::print(&report);
    }
    if let (Some(path), Some(recorder)) = (&args.record, &recorder) {
        let recording = report.recording(&function, &integration.key, recorder);
        let write = || {
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent)?;
            }
            std::fs::write(path, recording.render())
        };
        write().with_context(|| format!("could not write {}", path.display()))?;
        eprintln!("wrote {}", path.display());
        let replayed = replay(&runs, &function, recording.clone(), 1).await?;
        for replay in replayed {
            let found =
                differences(&recording.expected, &recording.exchanges, &replay.outcome, &replay.exchanges);
            if !found.is_empty() || replay.unmatched.is_some() {
                eprintln!(
                    "note: a replay of this recording differs from the run, because its secrets are masked or \
                           its requests ran concurrently:"
                );
                replay.unmatched.into_iter().chain(found).for_each(|line| eprintln!("  {line}"));
            }
        }
    }
    match report.outcome().error {
        Some(error) => bail!("the function failed with {}: {}", error.code, error.message),
        None => Ok(Done::Successful),
    }
}

/// Finds the function in `syncline.toml`.
fn find<'p>(args: &DryrunArgs, project: &'p Project) -> anyhow::Result<(&'p IntegrationSpec, FunctionKind)> {
    let integrations = &project.file.config.integrations;
    if let Some(key) = &args.integration
        && !integrations.iter().any(|integration| integration.key.as_str() == key)
    {
        let keys = || integrations.iter().map(|integration| integration.key.as_str());
        let help = match did_you_mean(key, keys()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("it has {}", keys().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ")),
        };
        bail!("syncline.toml has no integration `{key}`; {help}");
    }
    let of_integration = |integration: &&IntegrationSpec| {
        args.integration.as_ref().is_none_or(|key| integration.key.as_str() == key)
    };
    let wanted = integrations.iter().filter(of_integration);
    let functions: Vec<_> = wanted
        .flat_map(|integration| integration.functions().map(move |(kind, name)| (integration, kind, name)))
        .filter(|(_, kind, _)| args.kind.is_none_or(|wanted| wanted == *kind))
        .collect();
    let found: Vec<_> = functions.iter().filter(|(.., name)| **name == args.function).collect();
    match found.as_slice() {
        [(integration, kind, _)] => Ok((integration, *kind)),
        [] => {
            let near = did_you_mean(args.function.as_str(), functions.iter().map(|(.., name)| name.as_str()));
            let help = near.map_or_else(
                || "list it in a table such as `[integrations.KEY.syncs.NAME]`".to_owned(),
                |near| format!("did you mean `{near}`?"),
            );
            bail!("syncline.toml has no function `{}`; {help}", args.function)
        }
        several => {
            let each =
                several.iter().map(|(integration, kind, _)| format!("the {kind} of `{}`", integration.key));
            bail!(
                "syncline.toml has several functions `{}`: {}; choose one with --integration or --kind",
                args.function,
                each.collect::<Vec<_>>().join(", ")
            )
        }
    }
}

fn credentials(
    args: &DryrunArgs,
    mode: AuthMode,
    connected: Option<&Connected>,
) -> anyhow::Result<StoredCredentials> {
    let mut fields = match (connected, &args.credentials) {
        (Some(connected), _) => connected.credentials.clone(),
        (None, Some(given)) if given.trim_start().starts_with('{') => {
            serde_json::from_str(given).context("--credentials is not a valid JSON object")?
        }
        (None, Some(path)) => {
            let text = std::fs::read_to_string(path).with_context(|| {
                format!(
                    "could not read {path}; --credentials takes a JSON object, or a file that contains one"
                )
            })?;
            serde_json::from_str(&text).with_context(|| format!("{path} is not a valid JSON object"))?
        }
        (None, None) if mode == AuthMode::None => serde_json::Map::new(),
        (None, None) => bail!(
            "the provider's auth mode is {mode}, so the function needs credentials; pass them with --credentials, or use \
             those of a connection with --connection"
        ),
    };
    fields.entry("type").or_insert_with(|| mode.as_str().into());
    StoredCredentials::from_wire(mode, fields).map_err(|error| match error.field() {
        Some(field) => anyhow::anyhow!("the credentials are not valid: `{field}`: {error}"),
        None => anyhow::anyhow!("the credentials are not valid: {error}"),
    })
}

async fn run_data(
    args: &DryrunArgs,
    integration: &IntegrationSpec,
    kind: FunctionKind,
    connected: Option<&Connected>,
    credentials: &StoredCredentials,
) -> anyhow::Result<RunData> {
    if kind != FunctionKind::Sync && (args.checkpoint.is_some() || args.full || !args.variant.is_base()) {
        bail!(
            "--checkpoint, --full and --variant are for syncs, but `{}` is a function of kind {kind}",
            args.function
        );
    }
    if matches!(kind, FunctionKind::Sync | FunctionKind::Lifecycle) && args.input.is_some() {
        bail!("a function of kind {kind} has no --input");
    }
    let object = |option: &str, given: &Option<String>| {
        given.as_deref().map(|text| json_object(option, text)).transpose()
    };
    let stored = |text: Option<String>| text.unwrap_or_else(|| "{}".to_owned());
    let input = args.input.as_deref().map(|text| json("--input", text)).transpose()?;
    let checkpoint = match (object("--checkpoint", &args.checkpoint)?, connected) {
        (Some(given), _) => Some(given),
        (None, Some(connected)) if kind == FunctionKind::Sync && !args.full && args.variant.is_base() => {
            connected.checkpoint(integration, &args.function).await?
        }
        _ => None,
    };
    let config = object("--connection-config", &args.connection_config)?;
    let metadata = object("--metadata", &args.metadata)?;
    let mut variables = match connected {
        Some(connected) => connected.variables().await?,
        None => Vec::new(),
    };
    for (name, value) in &args.variables {
        variables.retain(|(known, _)| known != name);
        variables.push((name.clone(), value.clone()));
    }
    variables.sort();
    Ok(RunData {
        run: RunInfo {
            id: uuid::Uuid::new_v4().to_string(),
            variant: args.variant.to_string(),
            attempt: 1,
            is_full: false,
        },
        input,
        connection: ConnectionInfo {
            connection_id: args.connection.clone().unwrap_or_else(|| "dryrun".to_owned()),
            integration: integration.key.to_string(),
            provider: integration.provider.to_string(),
            environment: "dev".to_owned(),
            config: stored(config.or_else(|| connected.map(|connected| connected.config.clone()))),
            tags: stored(connected.map(|connected| connected.tags.clone())),
        },
        metadata: stored(metadata.or_else(|| connected.map(|connected| connected.metadata.clone()))),
        credentials: Some(credentials.to_wire(false).to_string()),
        variables,
        checkpoint,
    })
}

fn json(option: &str, text: &str) -> anyhow::Result<String> {
    let parsed = serde_json::from_str::<&RawValue>(text.trim());
    Ok(parsed.with_context(|| format!("{option} is not valid JSON (got `{text}`)"))?.get().to_owned())
}

fn json_object(option: &str, text: &str) -> anyhow::Result<String> {
    let text = json(option, text)?;
    if !matches!(serde_json::from_str(&text), Ok(Value::Object(_))) {
        bail!("{option} must be a JSON object (got `{text}`)");
    }
    Ok(text)
}

/// Lists the kinds in the help and in errors.
fn kind_parser() -> impl TypedValueParser<Value = FunctionKind> {
    let names = FunctionKind::ALL.iter().map(|kind| kind.as_str());
    PossibleValuesParser::new(names).try_map(|name| name.parse::<FunctionKind>())
}

fn parse_variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("a variable has the form NAME=VALUE".to_owned()),
    }
}
