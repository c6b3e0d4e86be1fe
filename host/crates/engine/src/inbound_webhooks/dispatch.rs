//! Dispatches stored webhooks: finds the connections that a webhook concerns, forwards it, and queues its functions.
//!
//! One transaction does all of this for a batch of webhooks and marks them as dispatched. If the host dies, the
//! webhooks stay as they were. Therefore every host can dispatch webhooks without leases. The queued functions are
//! ordinary jobs.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sqlx::PgConnection;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::functions::{DeployedFunction, Functions};
use crate::inbound_webhooks::payload::Payload;
use crate::inbound_webhooks::routing::{self, Match, WebhookEvent, match_events};
use crate::outbound_webhooks::{Forwarded, note_forward};
use syncline_providers::Catalogue;
use syncline_providers::webhook::Webhook;
use syncline_store::events::{Event, Events};
use syncline_store::function_jobs::{self, JobWebhook, NewJob};
use syncline_store::inbound_webhooks::log::State;
use syncline_store::inbound_webhooks::{self, Routed, Subject, Waiting};
use syncline_store::outbound_webhooks::{WebhookSettings, find_settings, notify};
use syncline_store::{Store, Transaction};
use syncline_telemetry::metrics::metrics;
use syncline_types::functions::FunctionKind;
use syncline_types::ids::{ConnectionPk, EnvironmentPk, FunctionName};

/// Webhooks of one integration in one batch, so that other integrations get their share.
const SHARE: i64 = 64;
const BATCH: i64 = 256;
/// Bytes of bodies in one batch, unless a single body is longer.
const BATCH_BYTES: i64 = 8 << 20;
/// Longest wait between two checks for webhooks, because another host may have died before dispatching its own.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(1);
const AFTER_ERROR: Duration = Duration::from_secs(1);
/// After a failed batch, this many batches contain one webhook each, to find the one that fails.
const SINGLE_BATCHES: u32 = 64;
/// After this many failures, a webhook is given up. It can be replayed.
const MAX_FAILURES: i32 = 8;
const SWEEP_EVERY: Duration = Duration::from_secs(60);
const SWEEP_BATCH: i64 = 500;

/// Why a batch was not dispatched.
struct Failed {
    /// The webhooks of the batch, with the number of earlier failures of each.
    webhooks: Vec<(Uuid, i32)>,
    error: anyhow::Error,
}

/// Settings of the dispatch of inbound webhooks that an operator can change.
#[derive(Debug, Clone)]
pub struct DispatchSettings {
    /// How many times a failed webhook function is retried.
    pub function_retries: u8,
    /// How long an inbound webhook is stored.
    pub kept_for: Duration,
}

/// Routes stored webhooks to connections, their functions and clients.
pub struct WebhookDispatch {
    store: Store,
    events: Arc<Events>,
    catalogue: Arc<Catalogue>,
    functions: Arc<Functions>,
    settings: DispatchSettings,
}

impl WebhookDispatch {
    pub fn new(
        store: Store,
        events: Arc<Events>,
        catalogue: Arc<Catalogue>,
        functions: Arc<Functions>,
        settings: DispatchSettings,
    ) -> Arc<Self> {
        Arc::new(Self { store, events, catalogue, functions, settings })
    }

    /// Dispatches webhooks until `shutdown`.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let mut events = self.events.subscribe();
        let mut single_batches = 0_u32;
        while !shutdown.is_cancelled() {
            let limits = if single_batches > 0 { (1, 1) } else { (SHARE, BATCH) };
            single_batches = single_batches.saturating_sub(1);
            match self.dispatch_batch(limits).await {
                Ok(0) => {
                    tokio::select! {
                        () = shutdown.cancelled() => {}
                        () = events.wait_within(MAX_CHECK_INTERVAL, Event::Received) => {}
                    }
                }
                Ok(_) => {}
                Err(failed) => {
                    let error = format!("{:#}", failed.error);
                    tracing::warn!(error, "could not dispatch inbound webhooks; retrying");
                    match failed.webhooks.as_slice() {
                        [(id, failures)] => self.note_failure(*id, *failures, &error).await,
                        [] => {}
                        _ => single_batches = SINGLE_BATCHES,
                    }
                    tokio::time::sleep(AFTER_ERROR).await;
                }
            }
        }
    }

    async fn note_failure(&self, id: Uuid, failures: i32, error: &str) {
        let wait = (failures < MAX_FAILURES)
            .then(|| Duration::from_secs(2_u64.pow(failures.max(0).cast_unsigned())));
        let noted = async {
            inbound_webhooks::note_failure(&mut *self.store.connect().await?, id, error, wait).await
        };
        match noted.await {
            Ok(()) if wait.is_none() => count_ended(State::Failed),
            Ok(()) => {}
            Err(error) => tracing::warn!(
                error = &error as &dyn std::error::Error,
                "could not record the failure of an inbound webhook"
            ),
        }
    }

    /// Dispatches a batch of webhooks. Returns how many it contained.
    async fn dispatch_batch(&self, (share, limit): (i64, i64)) -> Result<usize, Failed> {
        let mut batch = Vec::new();
        let turn = async {
            let (mut tx, mut waiting) = self.lock_waiting(share, limit).await?;
            if waiting.is_empty() {
                return Ok(0);
            }
            let mut bytes = 0;
            let fitting = waiting.iter().take_while(|webhook| {
                bytes += webhook.body_bytes;
                bytes <= BATCH_BYTES
            });
            let fitting = fitting.count().max(1);
            waiting.truncate(fitting);
            batch = waiting.iter().map(|webhook| (webhook.id, webhook.failures)).collect();
            let ids: Vec<Uuid> = waiting.iter().map(|webhook| webhook.id).collect();
            let mut bodies = inbound_webhooks::load_bodies(&mut tx, &ids).await?;
            let read = waiting.into_iter().map(|webhook| {
                let body = bodies.remove(&webhook.id).unwrap_or_default();
                ReadWebhook::new(&self.catalogue, webhook, &body)
            });
            let read: Vec<ReadWebhook> = read.collect();
            let dispatched = self.process(&mut tx, &read).await?;
            tx.commit().await?;
            dispatched.ended.iter().copied().for_each(count_ended);
            if dispatched.jobs > 0 {
                self.events.publish(Event::Jobs);
            }
            if dispatched.forwards > 0 {
                self.events.publish(Event::Webhooks);
            }
            Ok(read.len())
        };
        turn.await.map_err(|error: anyhow::Error| Failed { webhooks: batch, error })
    }

    /// Locks webhooks that wait for dispatch. Also ensures that this host knows what was deployed when they arrived.
    async fn lock_waiting(&self, share: i64, limit: i64) -> anyhow::Result<(Transaction, Vec<Waiting>)> {
        loop {
            let mut tx = self.store.begin().await?;
            let waiting = inbound_webhooks::lock_waiting(&mut tx, share, limit).await?;
            let environments: BTreeSet<EnvironmentPk> =
                waiting.iter().map(|webhook| webhook.environment).collect();
            let environments: Vec<EnvironmentPk> = environments.into_iter().collect();
            if waiting.is_empty() || self.functions.is_current(&mut tx, &environments).await? {
                return Ok((tx, waiting));
            }
            // Reloading uses its own database connections, so no lock is held meanwhile.
            tx.rollback().await?;
            self.functions.reload_of(&environments).await?;
        }
    }

    async fn process(&self, conn: &mut PgConnection, webhooks: &[ReadWebhook]) -> sqlx::Result<Dispatched> {
        let mut subjects: Vec<Subject> = Vec::new();
        let mut numbers: HashMap<Subject, usize> = HashMap::new();
        for subject in
            webhooks.iter().flat_map(ReadWebhook::events).flat_map(|event| event.subjects.iter().flatten())
        {
            numbers.entry(subject.clone()).or_insert_with(|| {
                subjects.push(subject.clone());
                subjects.len() - 1
            });
        }
        let mut known: Vec<Vec<inbound_webhooks::MatchedConnection>> = vec![Vec::new(); subjects.len()];
        if !subjects.is_empty() {
            for (number, addressee) in inbound_webhooks::find_matched_connections(conn, &subjects).await? {
                known[number].push(addressee);
            }
        }
        let mut settings: HashMap<EnvironmentPk, Option<WebhookSettings>> = HashMap::new();
        let mut dispatched = Dispatched::default();
        let mut routed = Vec::with_capacity(webhooks.len());
        for webhook in webhooks {
            let stored = &webhook.stored;
            let matched = match_events(webhook.events(), |subject| &known[numbers[subject]]);
            let mut jobs = 0;
            for matched in &matched.connections {
                jobs += self.queue_functions(conn, webhook, matched).await?;
            }
            if stored.forwards {
                let settings = match settings.entry(stored.environment) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(unknown) => unknown.insert(find_settings(conn, stored.environment).await?),
                };
                if let Some(settings) = settings {
                    dispatched.forwards += forward(conn, settings, webhook, &matched).await?;
                }
            }
            dispatched.jobs += jobs;
            routed.push(Routed { id: stored.id, connections: matched.connections.len(), jobs });
        }
        dispatched.ended =
            routed.iter().map(Routed::state).filter(|state| State::OVER.contains(state)).collect();
        inbound_webhooks::note_routed(conn, &routed).await?;
        if dispatched.forwards > 0 {
            notify(conn).await?;
        }
        Ok(dispatched)
    }

    /// Queues the functions that subscribe to the matched events of a connection. Returns how many.
    async fn queue_functions(
        &self,
        conn: &mut PgConnection,
        webhook: &ReadWebhook,
        matched: &Match,
    ) -> sqlx::Result<usize> {
        let stored = &webhook.stored;
        let functions = self.functions.webhooks_of(stored.integration);
        let mut queued = 0;
        for function in &functions {
            let events = webhook.events();
            let wanted = matched.items.iter().copied();
            let wanted: Vec<i32> =
                wanted.filter(|item| subscribes(function, &events[item.unsigned_abs() as usize])).collect();
            if wanted.is_empty() {
                continue;
            }
            let items = (wanted.len() < events.len()).then_some(wanted);
            let job = NewJob {
                id: job_id(stored.id, matched.addressee.connection, &function.name),
                environment: stored.environment,
                integration: stored.integration,
                connection: matched.addressee.connection,
                integration_key: &stored.integration_key,
                connection_id: &matched.addressee.connection_id,
                kind: FunctionKind::Webhook,
                function: &function.name,
                is_ordered: false,
                max_retries: i32::from(self.settings.function_retries),
                sealed_input: None,
                key: None,
                webhook: Some(JobWebhook { id: stored.id, items }),
            };
            function_jobs::enqueue(conn, &job).await?;
            queued += 1;
        }
        Ok(queued)
    }

    /// Removes webhooks older than the retention, and webhooks of deleted integrations, until `shutdown`.
    pub async fn sweep(self: Arc<Self>, shutdown: CancellationToken) {
        let kept_for = self.settings.kept_for;
        let mut turns = tokio::time::interval(SWEEP_EVERY);
        turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while shutdown.run_until_cancelled(turns.tick()).await.is_some() {
            let swept = async {
                let mut conn = self.store.connect().await?;
                while inbound_webhooks::delete_old(&mut conn, first_id_since(kept_for), SWEEP_BATCH).await?
                    > 0
                {}
                while inbound_webhooks::delete_orphans(&mut conn, SWEEP_BATCH).await? > 0 {}
                Ok::<_, sqlx::Error>(())
            };
            if let Some(Err(error)) = shutdown.run_until_cancelled(swept).await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "could not remove old inbound webhooks; retrying"
                );
            }
        }
    }
}

/// Counts a webhook whose processing has ended.
pub(crate) fn count_ended(state: State) {
    metrics().count_processed_webhook(state.as_str());
}

/// A webhook with the events that were found in it. `None` if the provider is not in the catalogue.
struct ReadWebhook {
    stored: Waiting,
    read: Option<(Arc<syncline_providers::Provider>, Payload, Vec<WebhookEvent>)>,
}

impl ReadWebhook {
    fn new(catalogue: &Catalogue, stored: Waiting, body: &[u8]) -> Self {
        let provider = catalogue.find(&stored.provider);
        let read = provider.and_then(|provider| {
            let webhook = provider.webhook.as_ref()?;
            let payload = Payload::read(stored.format, body, webhook).ok()?;
            let events = routing::events(&stored, webhook, &payload);
            Some((provider, payload, events))
        });
        Self { stored, read }
    }

    fn webhook(&self) -> Option<(&Webhook, &Payload)> {
        let (provider, payload, _) = self.read.as_ref()?;
        Some((provider.webhook.as_ref()?, payload))
    }

    fn events(&self) -> &[WebhookEvent] {
        self.read.as_ref().map_or(&[], |(_, _, events)| events)
    }
}

#[derive(Default)]
struct Dispatched {
    jobs: usize,
    forwards: u64,
    /// The final states of webhooks that queued no function.
    ended: Vec<State>,
}

fn subscribes(function: &DeployedFunction, event: &WebhookEvent) -> bool {
    function.subscriptions().iter().any(|wanted| wanted == "*" || event.event_type.as_ref() == Some(wanted))
}

/// The id of a function's job for a webhook. It is the same for each attempt and replay.
fn job_id(webhook: Uuid, connection: ConnectionPk, function: &FunctionName) -> Uuid {
    let name = format!("webhook job {webhook} {} {function}", connection.0);
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&blake3::hash(name.as_bytes()).as_bytes()[..16]);
    uuid::Builder::from_random_bytes(bytes).into_uuid()
}

async fn forward(
    conn: &mut PgConnection,
    settings: &WebhookSettings,
    webhook: &ReadWebhook,
    matched: &routing::Matched,
) -> sqlx::Result<u64> {
    let Some((recipe, payload)) = webhook.webhook() else { return Ok(0) };
    let stored = &webhook.stored;
    let is_all = |items: &[i32]| items.len() == webhook.events().len();
    let without_connection = Forwarded {
        environment: stored.environment,
        provider: &stored.provider,
        integration: &stored.integration_key,
        addressee: None,
        payload: "",
        headers: &stored.headers,
    };
    let mut written = 0;
    for of_connection in &matched.connections {
        let items = (!is_all(&of_connection.items)).then_some(of_connection.items.as_slice());
        let body = payload.only(recipe, items);
        let forwarded =
            Forwarded { addressee: Some(&of_connection.addressee), payload: &body, ..without_connection };
        written += note_forward(conn, settings, &forwarded).await?;
    }
    if !matched.leftover.is_empty() || matched.connections.is_empty() {
        let items = (!is_all(&matched.leftover)).then_some(matched.leftover.as_slice());
        let body = payload.only(recipe, items);
        written += note_forward(conn, settings, &Forwarded { payload: &body, ..without_connection }).await?;
    }
    Ok(written)
}

/// Returns the input of a webhook function as JSON text, or `None` if the webhook was removed meanwhile.
pub(crate) async fn function_input(
    catalogue: &Catalogue,
    conn: &mut PgConnection,
    provider: &syncline_types::ids::ProviderSlug,
    job: &JobWebhook,
) -> sqlx::Result<Option<String>> {
    let Some(stored) = inbound_webhooks::find_body(conn, job.id).await? else { return Ok(None) };
    let provider = catalogue.find(provider);
    let Some(webhook) = provider.as_ref().and_then(|provider| provider.webhook.as_ref()) else {
        return Ok(None);
    };
    let Ok(payload) = Payload::read(stored.format, &stored.body, webhook) else { return Ok(None) };
    let body = payload.only(webhook, job.items.as_deref());
    Ok(Some(format!(r#"{{"headers":{},"body":{body}}}"#, stored.headers)))
}

/// The lowest id of webhooks that arrived within the last `age`. Older webhooks have lower ids.
fn first_id_since(age: Duration) -> Uuid {
    let then = SystemTime::now().checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
    let since_epoch = then.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let millis = u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX);
    let mut bytes = [0; 16];
    bytes[..6].copy_from_slice(&millis.to_be_bytes()[2..]);
    bytes[6] = 0x70;
    Uuid::from_bytes(bytes)
}
