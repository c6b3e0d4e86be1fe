//! What providers have told: finds out whom it is about, forwards it, and queues the functions that are to know.
//!
//! All of that for a webhook is one transaction, which also notes that it was done: a host that dies leaves the
//! webhook as it was. So every host takes webhooks, and none is held under a lease; the functions are jobs like others.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sqlx::{PgConnection, Postgres, Transaction};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::functions::{DeployedFunction, Functions};
use crate::inbound_webhooks::payload::Payload;
use crate::inbound_webhooks::routing::{self, Match, WebhookEvent, match_events};
use crate::outbound_webhooks::{Forwarded, note_forward};
use syncline_providers::Catalogue;
use syncline_providers::webhook::Webhook;
use syncline_store::Store;
use syncline_store::events::{Event, Events};
use syncline_store::function_jobs::{self, JobWebhook, NewJob};
use syncline_store::inbound_webhooks::log::State;
use syncline_store::inbound_webhooks::{self, Routed, Subject, Waiting};
use syncline_store::outbound_webhooks::{WebhookSettings, find_settings, notify};
use syncline_telemetry::metrics::metrics;
use syncline_types::functions::FunctionKind;
use syncline_types::ids::{ConnectionPk, EnvironmentPk, FunctionName};

/// Of one integration, how many are taken in one turn; others shall have theirs.
const SHARE: i64 = 64;
const BATCH: i64 = 256;
/// Bodies of one turn, unless a single one is longer.
const BATCH_BYTES: i64 = 8 << 20;
/// However quiet it is, webhooks are looked for after this long: another host may have died with some.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const AFTER_ERROR: Duration = Duration::from_secs(1);
/// After a failure so many are taken one by one, to find the one that it was about.
const CAREFUL_TURNS: u32 = 64;
/// A webhook that fails so often in our hands is given up; it can be replayed.
const MAX_FAILURES: i32 = 8;
const SWEEP_EVERY: Duration = Duration::from_secs(60);
const SWEEP_BATCH: i64 = 500;

/// Why a turn came to nothing.
struct Failed {
    /// The webhooks that were in hand, with how often each has failed before.
    webhooks: Vec<(Uuid, i32)>,
    error: anyhow::Error,
}

/// What an operator can set of the dispatch of inbound webhooks.
#[derive(Debug, Clone)]
pub struct DispatchSettings {
    /// How often a webhook function that failed is tried again.
    pub function_retries: u8,
    /// How long a provider's webhook is kept.
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

    /// Works until `shutdown`.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let mut events = self.events.subscribe();
        let mut careful_turns = 0_u32;
        while !shutdown.is_cancelled() {
            let limits = if careful_turns > 0 { (1, 1) } else { (SHARE, BATCH) };
            careful_turns = careful_turns.saturating_sub(1);
            match self.dispatch_batch(limits).await {
                Ok(0) => {
                    tokio::select! {
                        () = shutdown.cancelled() => {}
                        () = events.wait_within(LOOK_EVERY, Event::Received) => {}
                    }
                }
                Ok(_) => {}
                Err(failed) => {
                    let error = format!("{:#}", failed.error);
                    tracing::warn!(error, "received webhooks could not be processed; it will be tried again");
                    match failed.webhooks.as_slice() {
                        [(id, failures)] => self.note_failure(*id, *failures, &error).await,
                        [] => {}
                        _ => careful_turns = CAREFUL_TURNS,
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
            Ok(()) if wait.is_none() => note_end(State::Failed),
            Ok(()) => {}
            Err(error) => tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the failure of a webhook could not be noted"
            ),
        }
    }

    /// Processes some webhooks. Gives how many.
    async fn dispatch_batch(&self, (share, limit): (i64, i64)) -> Result<usize, Failed> {
        let mut in_hand = Vec::new();
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
            in_hand = waiting.iter().map(|webhook| (webhook.id, webhook.failures)).collect();
            let ids: Vec<Uuid> = waiting.iter().map(|webhook| webhook.id).collect();
            let mut bodies = inbound_webhooks::load_bodies(&mut tx, &ids).await?;
            let read = waiting.into_iter().map(|webhook| {
                let body = bodies.remove(&webhook.id).unwrap_or_default();
                ReadWebhook::new(&self.catalogue, webhook, &body)
            });
            let read: Vec<ReadWebhook> = read.collect();
            let told = self.process(&mut tx, &read).await?;
            tx.commit().await?;
            told.ended.iter().copied().for_each(note_end);
            if told.jobs > 0 {
                self.events.publish(Event::Jobs);
            }
            if told.forwards > 0 {
                self.events.publish(Event::Webhooks);
            }
            Ok(read.len())
        };
        turn.await.map_err(|error: anyhow::Error| Failed { webhooks: in_hand, error })
    }

    /// Locks some webhooks that are to be processed. This host then knows what was deployed when they came in.
    async fn lock_waiting(
        &self,
        share: i64,
        limit: i64,
    ) -> anyhow::Result<(Transaction<'static, Postgres>, Vec<Waiting>)> {
        loop {
            let mut tx = self.store.begin().await?;
            let waiting = inbound_webhooks::lock_waiting(&mut tx, share, limit).await?;
            let environments: BTreeSet<EnvironmentPk> =
                waiting.iter().map(|webhook| webhook.environment).collect();
            let environments: Vec<EnvironmentPk> = environments.into_iter().collect();
            if waiting.is_empty() || self.functions.is_current(&mut tx, &environments).await? {
                return Ok((tx, waiting));
            }
            // Reading takes connections of its own, so nothing is held meanwhile.
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
        let mut told = Dispatched::default();
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
                    told.forwards += forward(conn, settings, webhook, &matched).await?;
                }
            }
            told.jobs += jobs;
            routed.push(Routed { id: stored.id, connections: matched.connections.len(), jobs });
        }
        told.ended = routed.iter().map(Routed::state).filter(|state| State::OVER.contains(state)).collect();
        inbound_webhooks::note_routed(conn, &routed).await?;
        if told.forwards > 0 {
            notify(conn).await?;
        }
        Ok(told)
    }

    /// Queues the functions that subscribe to what has happened to a connection. Gives how many.
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

    /// Removes what was kept for long enough, and what is left of integrations that are gone.
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
                    "old received webhooks were not removed"
                );
            }
        }
    }
}

/// Counts a webhook that is over.
pub(crate) fn note_end(state: State) {
    metrics().count_processed_webhook(state.as_str());
}

/// A webhook with what the catalogue finds in it. Without an entry in the catalogue, it is about nobody.
struct ReadWebhook {
    stored: Waiting,
    read: Option<(Arc<syncline_providers::Provider>, Payload, Vec<WebhookEvent>)>,
}

impl ReadWebhook {
    fn new(catalogue: &Catalogue, stored: Waiting, body: &[u8]) -> Self {
        let provider = catalogue.find(&stored.provider).cloned();
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
    /// How those webhooks ended for which no function runs.
    ended: Vec<State>,
}

fn subscribes(function: &DeployedFunction, event: &WebhookEvent) -> bool {
    function.subscriptions().iter().any(|wanted| wanted == "*" || event.event_type.as_ref() == Some(wanted))
}

/// The id of a function's run for a webhook: the same however often it is tried, or replayed.
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
    let about_nobody = Forwarded {
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
            Forwarded { addressee: Some(&of_connection.addressee), payload: &body, ..about_nobody };
        written += note_forward(conn, settings, &forwarded).await?;
    }
    if !matched.leftover.is_empty() || matched.connections.is_empty() {
        let items = (!is_all(&matched.leftover)).then_some(matched.leftover.as_slice());
        let body = payload.only(recipe, items);
        written += note_forward(conn, settings, &Forwarded { payload: &body, ..about_nobody }).await?;
    }
    Ok(written)
}

/// What a webhook function is called with, as JSON text. `None`: the webhook was removed meanwhile.
pub(crate) async fn function_input(
    catalogue: &Catalogue,
    conn: &mut PgConnection,
    provider: &syncline_types::ids::ProviderSlug,
    job: &JobWebhook,
) -> sqlx::Result<Option<String>> {
    let Some(stored) = inbound_webhooks::find_body(conn, job.id).await? else { return Ok(None) };
    let provider = catalogue.find(provider);
    let Some(webhook) = provider.and_then(|provider| provider.webhook.as_ref()) else { return Ok(None) };
    let Ok(payload) = Payload::read(stored.format, &stored.body, webhook) else { return Ok(None) };
    let body = payload.only(webhook, job.items.as_deref());
    Ok(Some(format!(r#"{{"headers":{},"body":{body}}}"#, stored.headers)))
}

/// What arrived before that has a lower id.
fn first_id_since(age: Duration) -> Uuid {
    let then = SystemTime::now().checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
    let since_epoch = then.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let millis = u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX);
    let mut bytes = [0; 16];
    bytes[..6].copy_from_slice(&millis.to_be_bytes()[2..]);
    bytes[6] = 0x70;
    Uuid::from_bytes(bytes)
}
