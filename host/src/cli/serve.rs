//! `syncline serve`: the host.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use axum::Router;
use clap::{Args, CommandFactory};
use futures_util::future::join_all;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::address::HttpAddress;
use super::client_limits::ClientLimitArgs;
use super::database::{Database, DatabaseArgs};
use super::keys::ensure_key;
use super::retention::RetentionArgs;
use super::stop_signals::StopSignals;
use super::telemetry::{LogFormat, Telemetry};
use super::webhooks::{InboundWebhookArgs, SenderArgs};
use super::{Cli, Done, variables};
use crate::host::{Foundation, Host, HostSettings};
use syncline_api::connect_ui::{self, ApiAddress, FrameAncestors};
use syncline_api::{self as api, server};
use syncline_auth::{Accounts, ApiKey, ApiKeys, Authenticator, Environments};
use syncline_config::{DeletionHold, MINIMUM_INTERVAL};
use syncline_egress::{EgressGateway, EgressSettings, HostPort};
use syncline_engine::{
    ConnectionSettings, DispatchSettings, IngestSettings, JobSettings, RecordSettings, SyncSettings,
};
use syncline_providers::Catalogue;
use syncline_sandbox::{CompiledCache, Sandbox, SandboxSettings};
use syncline_store::Store;
use syncline_store::events::Events;
use syncline_telemetry::clock::Clock;
use syncline_telemetry::failpoints::{self, Failpoint};

const DAY_SECONDS: u64 = 24 * 60 * 60;

#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Address and port to listen on
    #[arg(long, env = "SYNCLINE_LISTEN", default_value = "127.0.0.1:3003", value_name = "ADDRESS:PORT", value_parser = parse_listen)]
    listen: SocketAddr,
    /// URL at which clients reach this host [default: http://<listen>]
    #[arg(long, env = "SYNCLINE_PUBLIC_URL", value_name = "URL", value_parser = HttpAddress::parse_public)]
    public_url: Option<HttpAddress>,
    /// URL at which end users reach the Connect UI [default: <public URL>/connect]
    #[arg(long, env = "SYNCLINE_CONNECT_URL", value_name = "URL", value_parser = HttpAddress::parse_public)]
    connect_url: Option<HttpAddress>,
    /// Origins of pages that may embed the Connect UI in a frame, such as https://app.example.com, separated by
    /// spaces
    #[arg(long, env = "SYNCLINE_CONNECT_FRAME_ANCESTORS", default_value = "*", value_name = "ORIGIN …")]
    connect_frame_ancestors: FrameAncestors,
    /// Secret key of the environment `dev`; without this setting, the first start creates a key and prints it
    #[arg(long, env = "SYNCLINE_SECRET_KEY", hide_env_values = true, value_name = "KEY")]
    secret_key: Option<String>,
    /// Private addresses that provider requests may go to, such as localhost:8420, separated by commas
    #[arg(long, env = "SYNCLINE_EGRESS_ALLOW", value_name = "HOST:PORT,…")]
    egress_allow: Option<String>,
    #[command(flatten)]
    clients: ClientLimitArgs,
    /// How long a client or a provider may be silent in a request through /proxy
    #[arg(long, env = "SYNCLINE_PROXY_TIMEOUT_SECONDS", default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=DAY_SECONDS))]
    proxy_timeout_seconds: u64,
    /// Folder with additional provider files, which override the built-in ones
    #[arg(long, env = "SYNCLINE_PROVIDERS_DIR", value_name = "FOLDER")]
    providers_dir: Option<PathBuf>,
    /// Folder for compiled components [default: the folder `compiled` in the data directory]
    #[arg(long, env = "SYNCLINE_COMPILED_DIR", value_name = "FOLDER")]
    compiled_dir: Option<PathBuf>,
    /// Whether `syncline dev` started the host, which compiles changed components faster.
    #[arg(skip)]
    pub(super) is_for_development: bool,
    /// Name of the field of a record that contains its metadata
    #[arg(
        long,
        env = "SYNCLINE_RECORD_METADATA_KEY",
        default_value = "_service_metadata",
        value_name = "NAME",
        value_parser = parse_metadata_key
    )]
    record_metadata_key: String,
    /// Maximum number of concurrent syncs on this host
    #[arg(long, env = "SYNCLINE_MAX_SYNCS", default_value_t = 100, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(..=100_000))]
    max_syncs: u32,
    /// Maximum number of concurrent syncs of one integration on all hosts, unless its bundle sets one [default: no
    /// limit]
    #[arg(long, env = "SYNCLINE_MAX_SYNCS_PER_INTEGRATION", value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    max_syncs_per_integration: Option<u32>,
    /// Maximum number of concurrent syncs of one connection on all hosts, unless its bundle sets one
    #[arg(long, env = "SYNCLINE_MAX_SYNCS_PER_CONNECTION", default_value_t = 8, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    max_syncs_per_connection: u32,
    /// Shortest interval between two runs of a sync that a bundle or a client may set
    #[arg(long, env = "SYNCLINE_MINIMUM_INTERVAL_SECONDS", default_value_t = MINIMUM_INTERVAL.as_secs(), value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=31 * DAY_SECONDS))]
    minimum_interval_seconds: u64,
    /// Number of consecutive interrupted attempts without progress after which a sync fails with `no_progress`
    #[arg(long, env = "SYNCLINE_MAX_IDLE_ATTEMPTS", default_value_t = 5, value_name = "NUMBER", value_parser = clap::value_parser!(i32).range(1..))]
    max_idle_attempts: i32,
    /// Maximum number of concurrent asynchronous actions on this host
    #[arg(long, env = "SYNCLINE_MAX_ASYNC_ACTIONS", default_value_t = 50, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(..=100_000))]
    max_async_actions: u32,
    /// Maximum number of concurrent functions of all kinds on this host. A quarter is reserved for functions with a
    /// waiting caller
    #[arg(long, env = "SYNCLINE_MAX_INVOCATIONS", default_value_t = 2_000, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    max_invocations: u32,
    /// How long results of asynchronous actions, and of requests with an Idempotency-Key, are retained
    #[arg(long, env = "SYNCLINE_ACTION_RESULT_SECONDS", default_value_t = 24 * 3600, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3650 * DAY_SECONDS))]
    action_result_seconds: u64,
    /// Maximum number of concurrent readers of GET /records/changes
    #[arg(long, env = "SYNCLINE_MAX_CHANGE_READERS", default_value_t = 1_000, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    max_change_readers: u32,
    /// Maximum number of connections to Postgres, including one that listens for notifications
    #[arg(long, env = "SYNCLINE_DATABASE_CONNECTIONS", default_value_t = 20, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(3..=10_000))]
    database_connections: u32,
    /// How long a host may miss its heartbeats before another host takes over its runs
    #[arg(long, env = "SYNCLINE_LEASE_SECONDS", default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=DAY_SECONDS))]
    lease_seconds: u64,
    /// Hold the deletions of a full sync for approval if more than this share of the live records is missing from it
    #[arg(long, env = "SYNCLINE_HOLD_DELETIONS_ABOVE", default_value_t = 0.5, value_name = "SHARE", value_parser = parse_share)]
    hold_deletions_above: f64,
    /// Never hold deletions of a sync that has fewer records than this
    #[arg(long, env = "SYNCLINE_HOLD_DELETIONS_FROM", default_value_t = 100, value_name = "NUMBER")]
    hold_deletions_from: u64,
    /// How long finished runs are retained, with their logs
    #[arg(long, env = "SYNCLINE_RUN_RETENTION_DAYS", default_value_t = 30, value_name = "DAYS", value_parser = clap::value_parser!(u64).range(1..=3650))]
    run_retention_days: u64,
    /// How long entries of the audit log are retained
    #[arg(long, env = "SYNCLINE_AUDIT_RETENTION_DAYS", default_value_t = 365, value_name = "DAYS", value_parser = clap::value_parser!(u64).range(1..=3650))]
    audit_retention_days: u64,
    /// How long requests may continue after a stop signal, and runs after they were asked to stop
    #[arg(long, env = "SYNCLINE_GRACE_SECONDS", default_value_t = 10, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(..=DAY_SECONDS))]
    grace_seconds: u64,
    /// Maximum number of records of one model, connection and variant, including tombstones
    #[arg(long, env = "SYNCLINE_MAX_STREAM_RECORDS", default_value_t = 50_000_000, value_name = "NUMBER")]
    max_stream_records: u64,
    #[command(flatten)]
    retention: RetentionArgs,
    #[command(flatten)]
    sender: SenderArgs,
    /// For tests: the step at which this host is killed or frozen, such as batch-committing:2=kill
    #[arg(long, env = "SYNCLINE_FAILPOINT", hide = true, value_name = "STEP:TIME=EFFECT")]
    failpoint: Option<Failpoint>,
    /// Separate address for /metrics, which is then not served with the API
    #[arg(long, env = "SYNCLINE_METRICS_LISTEN", value_name = "ADDRESS:PORT", value_parser = parse_listen)]
    metrics_listen: Option<SocketAddr>,
    #[command(flatten)]
    inbound_webhooks: InboundWebhookArgs,
    /// Format of log lines
    #[arg(long, env = "SYNCLINE_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

pub(super) async fn run(args: ServeArgs) -> anyhow::Result<Done> {
    let began = Instant::now();
    // First of all: without a handler, either signal ends the process at once.
    let stop_signals = StopSignals::listen().context("could not install the signal handlers")?;
    let telemetry = Telemetry::start(args.log_format)?;
    if let Some(failpoint) = &args.failpoint {
        failpoints::arm(failpoint.clone());
    }
    warn_of_unknown_variables();
    Box::pin(serve(&args, began, stop_signals.requested())).await?;
    tracing::info!("stopped");
    telemetry.finish().await;
    Ok(Done::Successful)
}

/// Starts the host and serves until `stop` is cancelled, which may happen before the host is ready.
pub(super) async fn serve(args: &ServeArgs, began: Instant, stop: &CancellationToken) -> anyhow::Result<()> {
    // Validated before anything is started, so that a mistake is reported at once.
    let secret_key = args.secret_key.as_deref().map(ApiKey::parse).transpose();
    let secret_key = secret_key.context("SYNCLINE_SECRET_KEY is invalid")?;
    let clock = Clock::system();
    let gateway = gateway(args, clock.clone())?;
    let catalogue = Catalogue::load(args.providers_dir.as_deref())?;
    let master_keys = args.database.master_keys_of_host(args.listen)?;
    // Bound first, so that an address in use is reported before anything is started.
    let listener = TcpListener::bind(args.listen).await.with_context(|| {
        format!("could not listen on {}; choose another address with --listen", args.listen)
    })?;
    let metrics_listener = match args.metrics_listen {
        None => None,
        Some(address) => Some(TcpListener::bind(address).await.with_context(|| {
            format!("could not listen on {address}; choose another address with --metrics-listen")
        })?),
    };
    let Some(mut database) = args.database.open_for_host(stop).await? else { return Ok(()) };
    let served = async {
        let compiled_key = master_keys.derive("syncline 2026 compiled code");
        let events = Arc::new(Events::new(clock.clone()));
        let opened = async {
            let store = Store::open(database.databases.clone(), args.database_connections).await?;
            let environments =
                Environments::open(clock.clone(), store.clone(), master_keys, Arc::clone(&events)).await?;
            anyhow::Ok((store, environments))
        };
        let Some(opened) = stop.run_until_cancelled(opened).await else { return Ok(()) };
        let (store, environments) = opened?;
        let authenticator = Authenticator::new(store.clone(), Arc::clone(&environments), Arc::clone(&events));
        let api_keys = ApiKeys::new(store.clone(), authenticator);
        // Not cancelled by `stop`: a new key that is not printed would be lost.
        if let Some(generated) = ensure_key(&api_keys, &environments, secret_key).await? {
            println!("Secret key of environment `dev`, shown only once: {}", generated.expose());
        }
        let addresses = Addresses::of(args, listener.local_addr()?);
        if let Some(link) = Accounts::new(store.clone()).first_account_link().await? {
            let url = syncline_dashboard::link_url(&addresses.public_url, &link);
            println!("Create the first account of the dashboard with this link, which works once: {url}");
        }
        let foundation = Foundation {
            clock,
            store,
            events: Arc::clone(&events),
            environments,
            catalogue: Arc::new(catalogue),
            gateway: Arc::new(gateway),
            sandbox: Arc::new(sandbox(args, compiled_key)?),
        };
        let Some(host) = Host::start(foundation, settings(args, &addresses), stop).await? else {
            return Ok(());
        };
        let routes = routes(args, listener, metrics_listener, &host)?;
        let ready_after = began.elapsed().as_millis() as u64;
        tracing::info!(start.ms = ready_after, "Syncline is ready at {}", addresses.public_url);
        serve_until_stopped(args, routes, host, &mut database, stop).await
    };
    let served = served.await;
    // Also after an error, so that a private Postgres has stopped when the host exits.
    let closed = database.close().await;
    served.and(closed)
}

/// The URLs at which clients and end users reach the host.
struct Addresses {
    public_url: String,
    connect_url: String,
}

impl Addresses {
    fn of(args: &ServeArgs, listening: SocketAddr) -> Self {
        let public_url =
            args.public_url.as_ref().map_or_else(|| format!("http://{listening}"), ToString::to_string);
        let connect_url =
            args.connect_url.as_ref().map_or_else(|| format!("{public_url}/connect"), ToString::to_string);
        Self { public_url, connect_url }
    }
}

/// Returns the routes of the API's address, and of the metrics address if there is one.
fn routes(
    args: &ServeArgs,
    listener: TcpListener,
    metrics_listener: Option<TcpListener>,
    host: &Host,
) -> anyhow::Result<Vec<(TcpListener, Router)>> {
    let app = &host.app;
    let api = match args.connect_url {
        None => ApiAddress::BesideThePage,
        Some(_) => ApiAddress::At(app.public_url.parse().context("SYNCLINE_PUBLIC_URL")?),
    };
    let pages = connect_ui::router(api, &args.connect_frame_ancestors)
        .merge(syncline_dashboard::router(host.dashboard.clone()));
    Ok(match metrics_listener {
        None => vec![(listener, api::router(app.clone(), pages.merge(api::metrics_routes())))],
        Some(metrics) => vec![
            (metrics, api::metrics_routes().with_state(app.clone())),
            (listener, api::router(app.clone(), pages)),
        ],
    })
}

fn warn_of_unknown_variables() {
    let set = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let unknown = variables::unknown(&Cli::command(), set);
    if !unknown.is_empty() {
        tracing::warn!(
            "ignoring unknown environment variables: {}; `syncline serve --help` lists the known ones",
            unknown.join(", ")
        );
    }
}

fn gateway(args: &ServeArgs, clock: Clock) -> anyhow::Result<EgressGateway> {
    let allow = args.egress_allow.as_deref().map(HostPort::parse_list).transpose();
    let settings = EgressSettings {
        allow: allow.context("SYNCLINE_EGRESS_ALLOW is invalid")?.unwrap_or_default(),
        forward_timeout: Duration::from_secs(args.proxy_timeout_seconds),
        ..EgressSettings::default()
    };
    Ok(EgressGateway::new(settings, clock)?)
}

fn sandbox(args: &ServeArgs, compiled_key: [u8; 32]) -> anyhow::Result<Sandbox> {
    let folder = args.compiled_dir.clone().unwrap_or_else(|| args.database.data_dir().join("compiled"));
    let compiler =
        std::env::current_exe().context("could not determine the path of the `syncline` binary")?;
    let shares = SandboxSettings { max_invocations: args.max_invocations };
    let mut cache = CompiledCache::new(folder, compiled_key, compiler);
    if args.is_for_development {
        cache = cache.reusing_functions();
    }
    Ok(Sandbox::new(&shares, cache)?)
}

fn settings(args: &ServeArgs, addresses: &Addresses) -> HostSettings {
    let lease = Duration::from_secs(args.lease_seconds);
    let grace = Duration::from_secs(args.grace_seconds);
    HostSettings {
        connections: ConnectionSettings { lease, grace, max_page_bytes: args.clients.max_page_bytes() },
        dispatch: DispatchSettings {
            function_retries: args.inbound_webhooks.function_retries(),
            kept_for: args.inbound_webhooks.kept_for(),
        },
        ingest: IngestSettings {
            max_body_bytes: args.inbound_webhooks.max_body_bytes(),
            held_bytes: args.inbound_webhooks.held_bytes(),
        },
        jobs: JobSettings {
            lease,
            max_jobs: args.max_async_actions as usize,
            results_kept_for: Duration::from_secs(args.action_result_seconds),
            grace,
        },
        records: RecordSettings {
            metadata_key: args.record_metadata_key.as_str().into(),
            max_stream_records: args.max_stream_records,
            max_page_bytes: args.clients.max_page_bytes(),
        },
        clients: args.clients.limits(),
        retention: args.retention.settings(),
        sender: args.sender.settings(grace),
        syncs: SyncSettings {
            lease,
            max_syncs: args.max_syncs as usize,
            max_syncs_per_integration: args.max_syncs_per_integration,
            max_syncs_per_connection: args.max_syncs_per_connection,
            deletion_hold: DeletionHold { above: args.hold_deletions_above, from: args.hold_deletions_from },
            max_idle_attempts: args.max_idle_attempts,
            grace,
        },
        max_change_readers: args.max_change_readers as usize,
        minimum_interval: Duration::from_secs(args.minimum_interval_seconds),
        runs_kept_for: Duration::from_secs(args.run_retention_days * DAY_SECONDS),
        audit_log_kept_for: Duration::from_secs(args.audit_retention_days * DAY_SECONDS),
        grace,
        public_url: addresses.public_url.as_str().into(),
        connect_url: addresses.connect_url.as_str().into(),
    }
}

async fn serve_until_stopped(
    args: &ServeArgs,
    served: Vec<(TcpListener, Router)>,
    host: Host,
    database: &mut Database,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let stop_serving = CancellationToken::new();
    let servers = served.into_iter().map(|(listener, routes)| {
        server::serve(listener, routes, args.clients.server(), stop_serving.clone())
    });
    let requests_done = tokio::spawn(join_all(servers.collect::<Vec<_>>()));
    let database_ended = async {
        match &mut database.private {
            Some(private) => private.ended().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = database_ended => tracing::info!("stopping: the private Postgres has exited"),
    }
    host.begin_to_stop();
    stop_serving.cancel();
    let (requests_done, ()) =
        tokio::join!(tokio::time::timeout(host.grace(), requests_done), host.finish_work());
    match requests_done {
        Ok(done) => drop(done?),
        Err(_) => tracing::warn!("stopped before all requests were answered, because the grace period ended"),
    }
    host.close().await;
    Ok(())
}

fn parse_listen(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "it must be an IP address and a port, such as 127.0.0.1:3003")
}

/// The key is written into JSON without escaping, next to the `id` that every record has.
pub(super) fn parse_metadata_key(text: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    match text {
        "id" => Err("`id` is reserved for the record's id; choose another name".to_owned()),
        _ if (1..=64).contains(&text.len()) && text.bytes().all(is_plain) => Ok(text.to_owned()),
        _ => Err("it must consist of 1 to 64 letters, digits, `_` and `-`".to_owned()),
    }
}

fn parse_share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "it must be a number from 0 to 1".to_owned())
}
