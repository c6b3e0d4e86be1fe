//! `syncline dev`: builds, deploys and runs a project after each change of its files.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Args, Parser};
use serde::Deserialize;
use serde_json::{Value, json};

use super::client::{Client, ConnectionName, HostArgs};
use super::connections::import_without_credentials;
use super::json_input::JsonInput;
use super::progress::Spinner;
use super::project::{Opened, Project, folder, show};
use super::runs::NextRun;
use super::selection::{self, ConnectionArgs};
use super::serve::{ServeArgs, serve};
use super::stop_signals::StopSignals;
use super::telemetry::Telemetry;
use super::trigger::run_action;
use super::{Cli, Command, Done, dev_key, print_failure};
use crate::generate::{generate, is_generated};
use sources::Sources;
use syncline_config::{FunctionKind, IntegrationSpec, did_you_mean};

mod sources;

/// Id of the connection that the command creates if the provider needs no credentials.
const OWN_CONNECTION: &str = "dev";
const ASK_EVERY: Duration = Duration::from_millis(100);
const LOOK_FOR_CONNECTION_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(super) struct DevArgs {
    /// Folder with the project's syncline.toml [default: the current folder]
    project: Option<PathBuf>,
    /// Sync or action to run after each change [default: the first sync in syncline.toml]
    #[arg(long, short, value_name = "NAME")]
    function: Option<String>,
    /// Input of the action as JSON; @FILE reads a file
    #[arg(long, value_name = "JSON", requires = "function")]
    input: Option<String>,
    #[command(flatten)]
    connection: ConnectionArgs,
    #[command(flatten)]
    host: HostArgs,
}

/// The function that runs after each change.
struct Chosen {
    integration: String,
    provider: String,
    kind: FunctionKind,
    name: String,
}

/// The reason why no connection can be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "the integration `{integration}` has no connection; create one in a second terminal in this folder, with `syncline \
     connections import ID --integration {integration} --credentials @FILE` or in the dashboard"
)]
struct NoConnection {
    integration: String,
}

pub(super) async fn run(args: DevArgs) -> anyhow::Result<Done> {
    let stop_signals = StopSignals::listen().context("could not install the signal handlers")?;
    let telemetry = Telemetry::start_quietly()?;
    let folder = folder(args.project.clone())?;
    let client = Client::new(args.host.url().clone(), secret_key(&args, &folder)?);
    let own_host = if client.finds_a_host().await { None } else { Some(own_host(&args, &folder)?) };
    let stop = stop_signals.requested();
    let host = async {
        let Some(own_host) = &own_host else { return Ok(()) };
        let served = Box::pin(serve(own_host, Instant::now(), stop)).await;
        // Also after an error, without which the other part would wait for the host.
        stop.cancel();
        served
    };
    let work = async {
        let worked =
            stop.run_until_cancelled(Box::pin(work(&args, &folder, &client, own_host.is_some()))).await;
        stop.cancel();
        worked.unwrap_or(Ok(()))
    };
    let (served, worked) = tokio::join!(host, work);
    telemetry.finish().await;
    served.and(worked)?;
    println!("stopped");
    Ok(Done::Successful)
}

/// The key in the command line or the environment, or else the project's own.
fn secret_key(args: &DevArgs, folder: &Path) -> anyhow::Result<String> {
    match args.host.secret_key() {
        Some(key) => Ok(key.to_owned()),
        None => dev_key::read_or_create(folder),
    }
}

/// The settings of the host that this command starts.
fn own_host(args: &DevArgs, folder: &Path) -> anyhow::Result<ServeArgs> {
    let url = args.host.url();
    let listen = url.to_listen().with_context(|| {
        format!("there is no host at {url}, and this command can start one only at an address such as http://127.0.0.1:3003")
    })?;
    let mut arguments = vec!["syncline".to_owned(), "serve".to_owned(), format!("--listen={listen}")];
    arguments.push(format!("--secret-key={}", secret_key(args, folder)?));
    // Root's private Postgres runs as another user, who may be unable to reach the project.
    let is_root = rustix::process::geteuid().is_root();
    if !is_root && std::env::var_os("SYNCLINE_DATA_DIR").is_none() {
        let data_dir = folder.join(".syncline");
        arguments
            .push(format!("--data-dir={}", data_dir.to_str().context("the project's path is not UTF-8")?));
    }
    match Cli::try_parse_from(arguments)?.command {
        Command::Serve(mut settings) => {
            settings.is_for_development = true;
            Ok(*settings)
        }
        _ => unreachable!("the arguments name this command"),
    }
}

async fn work(args: &DevArgs, folder: &Path, client: &Client, is_own: bool) -> anyhow::Result<()> {
    let starting = Spinner::start("starting a host");
    while !client.finds_a_host().await {
        tokio::time::sleep(ASK_EVERY).await;
    }
    drop(starting);
    println!(
        "{} {}; stop with Ctrl-C",
        if is_own { "started a host at" } else { "using the host at" },
        args.host.url()
    );
    loop {
        let sources = Sources::read(folder);
        let began = Instant::now();
        let cycle = cycle(args, folder, client, &sources).await;
        let waits_for_connection = match cycle {
            Ok(()) => None,
            Err(error) => {
                print_failure(&error);
                error.downcast::<NoConnection>().ok()
            }
        };
        println!("watching {} ({:.1} s)", folder.display(), began.elapsed().as_secs_f64());
        tokio::select! {
            () = sources.changed() => {}
            created = connection_created(client, waits_for_connection.as_ref()) => created?,
        }
    }
}

/// Waits until the integration has a connection. Waits forever if no connection is missing.
async fn connection_created(client: &Client, missing: Option<&NoConnection>) -> anyhow::Result<()> {
    let Some(NoConnection { integration }) = missing else { return std::future::pending().await };
    while selection::list(client, Some(integration), None, 1).await?.is_empty() {
        tokio::time::sleep(LOOK_FOR_CONNECTION_EVERY).await;
    }
    Ok(())
}

/// Builds, deploys and runs once. Returns early if the sources change while the function runs.
async fn cycle(args: &DevArgs, folder: &Path, client: &Client, sources: &Sources) -> anyhow::Result<()> {
    let project = match Project::open(folder)? {
        Opened::Project(project) => project,
        Opened::Mistakes(diagnostics) => {
            show(&diagnostics);
            return Ok(());
        }
    };
    let chosen = Chosen::of(args, &project.file.config.integrations)?;
    write_types(&project)?;
    let began = Instant::now();
    let built =
        tokio::task::spawn_blocking(move || project.build_for_development()?.write().map_err(Into::into));
    let bundle: anyhow::Result<Vec<u8>> = built.await?;
    let bundle = bundle?;
    let build_time = began.elapsed();
    let known = connection(args, client, &chosen).await;
    let next_run = match &known {
        Ok(Some(connection)) => Some(NextRun::of(client, connection, &chosen.name).await?),
        _ => None,
    };
    let began = Instant::now();
    let deploying = Spinner::start("deploying");
    let deployed: Value =
        client.post_bundle("deployments?accept_capabilities=true", bundle.into(), None, |_| {}).await?;
    drop(deploying);
    println!(
        "built in {:.1} s, deployed version {} in {:.1} s",
        build_time.as_secs_f64(),
        deployed["version"],
        began.elapsed().as_secs_f64()
    );
    for warning in deployed["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        println!("  ! {warning}");
    }
    tokio::select! {
        ran = run_chosen(args, client, &chosen, known, next_run) => ran,
        () = sources.changed() => {
            println!("the sources have changed; the run continues on the host");
            Ok(())
        }
    }
}

/// Writes the types of the models again if syncline.toml has changed them.
fn write_types(project: &Project) -> anyhow::Result<()> {
    for file in generate(project.folder(), &project.file) {
        let path = project.folder().join(&file.path);
        let is_stale = |text: String| is_generated(&text) && text != file.text;
        if std::fs::read_to_string(&path).is_ok_and(is_stale) {
            std::fs::write(&path, &file.text)
                .with_context(|| format!("could not write {}", path.display()))?;
            println!("wrote {}", file.path.display());
        }
    }
    Ok(())
}

impl Chosen {
    fn of(args: &DevArgs, integrations: &[IntegrationSpec]) -> anyhow::Result<Self> {
        let of_key = |integration: &&IntegrationSpec| {
            args.connection.integration.as_deref().is_none_or(|key| key == integration.key.as_str())
        };
        let functions: Vec<(&IntegrationSpec, FunctionKind, &str)> = integrations
            .iter()
            .filter(of_key)
            .flat_map(|integration| {
                let functions = integration.functions();
                functions.map(move |(kind, name)| (integration, kind, name.as_str()))
            })
            .filter(|(_, kind, _)| matches!(kind, FunctionKind::Sync | FunctionKind::Action))
            .collect();
        let found = match &args.function {
            Some(wanted) => functions.iter().find(|(_, _, name)| name == wanted).with_context(|| {
                let similar = did_you_mean(wanted, functions.iter().map(|(_, _, name)| *name));
                let hint = similar.map(|similar| format!("; did you mean `{similar}`?")).unwrap_or_default();
                format!("syncline.toml lists no sync or action `{wanted}`{hint}")
            })?,
            None => functions.iter().find(|(_, kind, _)| *kind == FunctionKind::Sync).context(
                "syncline.toml lists no sync; name an action with --function, and its input with --input",
            )?,
        };
        let (integration, kind, name) = *found;
        Ok(Self {
            integration: integration.key.as_str().to_owned(),
            provider: integration.provider.as_str().to_owned(),
            kind,
            name: name.to_owned(),
        })
    }
}

/// Returns the connection to run for, or nothing if the integration has no connection, or is not deployed yet.
async fn connection(
    args: &DevArgs,
    client: &Client,
    chosen: &Chosen,
) -> anyhow::Result<Option<ConnectionName>> {
    let mut found = selection::list(client, Some(&chosen.integration), None, 10).await?;
    match &args.connection.connection {
        Some(id) => {
            let similar = did_you_mean(id, found.iter().map(|connection| &*connection.id));
            let hint = similar.map(|similar| format!("; did you mean `{similar}`?")).unwrap_or_default();
            let named = selection::list(client, Some(&chosen.integration), Some(id), 1).await?.pop();
            let named = named.with_context(|| {
                format!("the integration `{}` has no connection `{id}`{hint}", chosen.integration)
            })?;
            Ok(Some(named))
        }
        None if found.len() > 1 => {
            let ids: Vec<&str> = found.iter().map(|connection| &*connection.id).collect();
            bail!("several connections exist: {}; choose one with --connection", ids.join(", "))
        }
        None => Ok(found.pop()),
    }
}

/// Runs the function, and prints its log and result.
async fn run_chosen(
    args: &DevArgs,
    client: &Client,
    chosen: &Chosen,
    known: anyhow::Result<Option<ConnectionName>>,
    next_run: Option<NextRun>,
) -> anyhow::Result<()> {
    // The start of a new connection runs its syncs, so this command need not trigger them.
    let (connection, next_run, is_new) = match (known?, next_run) {
        (Some(connection), Some(next_run)) => (connection, next_run, false),
        _ => {
            let connection = create_connection(client, chosen).await?;
            let next_run = NextRun::first_of(client, &connection, &chosen.name);
            (connection, next_run, true)
        }
    };
    if chosen.kind == FunctionKind::Action {
        let input = args.input.as_deref().map(JsonInput::read).transpose()?;
        let output = run_action(client, &connection, &chosen.name, input).await;
        next_run.follow_started().await?;
        println!("{}", output?);
        return Ok(());
    }
    if !is_new {
        let body = json!({
            "provider_config_key": connection.integration, "connection_id": connection.id, "syncs": [chosen.name],
        });
        client.post_for_text("sync/trigger", body.to_string().into_bytes()).await?;
    }
    next_run.follow().await.map(drop)
}

#[derive(Deserialize)]
struct ProviderResponse {
    data: Provider,
}

#[derive(Deserialize)]
struct Provider {
    auth_mode: String,
}

/// Creates a connection if the provider needs no credentials.
async fn create_connection(client: &Client, chosen: &Chosen) -> anyhow::Result<ConnectionName> {
    let provider: ProviderResponse = client.get(&format!("providers/{}", chosen.provider)).await?;
    if provider.data.auth_mode != "NONE" {
        return Err(NoConnection { integration: chosen.integration.clone() }.into());
    }
    let connection = import_without_credentials(client, &chosen.integration, OWN_CONNECTION).await?;
    println!("created the connection {connection}");
    Ok(connection)
}
