//! The webhooks of syncs: one per model after a successful run, one after a failed run, and one per model after a
//! provider's webhook changed records.

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::{Value, json};
use sqlx::PgConnection;

use crate::outbound_webhooks::{FROM, to_sorted_json};
use crate::records::commit::{Changes, ModelCounts, RunCounts};
use syncline_store::outbound_webhooks::{self, Message, Subject, Target};
use syncline_store::runs::RunError;
use syncline_store::schedules::Claim;
use syncline_types::ids::{ConnectionPk, EnvironmentPk, FunctionName, ModelName, Variant};

/// The sync and connection of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SyncSubject<'a> {
    pub environment: EnvironmentPk,
    pub connection: ConnectionPk,
    pub sync: &'a FunctionName,
    pub variant: &'a Variant,
    pub last_success_at: Option<DateTime<Utc>>,
}

impl<'a> From<&'a Claim> for SyncSubject<'a> {
    fn from(claim: &'a Claim) -> Self {
        Self {
            environment: claim.environment,
            connection: claim.connection,
            sync: &claim.sync,
            variant: &claim.variant,
            last_success_at: claim.last_success_at,
        }
    }
}

/// The end of a run.
pub(crate) enum SyncEnd<'a> {
    /// Contains the counts of everything that was saved since the last success, and the start of that time by the clock
    /// of the records database.
    Success {
        unreported: &'a RunCounts,
        since: DateTime<Utc>,
    },
    Failure {
        models: Vec<&'a ModelName>,
        error: &'a RunError,
        failed_at: DateTime<Utc>,
    },
}

/// The checkpoints at the start and at the end of a run, as JSON objects.
#[derive(Debug, Clone, Default)]
pub(crate) struct Checkpoints {
    pub from: Option<String>,
    pub to: Option<String>,
}

/// Writes the deliveries about a run's end, according to the environment's settings, in the transaction that closes it.
/// Returns how many.
pub(crate) async fn note_sync(
    conn: &mut PgConnection,
    sync: &SyncSubject<'_>,
    end: &SyncEnd<'_>,
    checkpoints: &Checkpoints,
) -> sqlx::Result<u64> {
    let Some(subject) = outbound_webhooks::find_subject(conn, sync.connection).await? else { return Ok(0) };
    let targets = subject.settings.targets(subject.webhook_url_override.as_deref());
    if targets.is_empty() || !is_wanted(end, &subject) {
        return Ok(0);
    }
    let sync_type = if sync.last_success_at.is_none() { "INITIAL" } else { "INCREMENTAL" };
    let mut base = base(&subject, sync.sync, sync.variant, sync_type);
    if checkpoints.from.is_some() || checkpoints.to.is_some() {
        base["checkpoints"] = json!({
            "from": checkpoint_body(checkpoints.from.as_deref()),
            "to": checkpoint_body(checkpoints.to.as_deref()),
        });
    }
    let bodies: Vec<Value> = match end {
        SyncEnd::Success { unreported, since } => unreported
            .iter()
            .filter(|(_, counts)| subject.settings.on_sync_completion_always || !is_empty(counts))
            .map(|(model, counts)| success(&base, model, counts, *since))
            .collect(),
        SyncEnd::Failure { models, error, failed_at } => {
            let started_at = sync.last_success_at.unwrap_or(*failed_at);
            vec![failure(&base, models, error, started_at, *failed_at)]
        }
    };
    write(conn, sync.environment, sync.connection, bodies, &targets).await
}

/// The records that a webhook function has saved.
#[derive(Debug)]
pub(crate) struct SavedByWebhook<'a> {
    pub environment: EnvironmentPk,
    pub connection: ConnectionPk,
    pub changes: &'a Changes,
}

/// Writes the deliveries about changes of a webhook function: one for each model and variant, with the name of the sync
/// that saves the model. Returns how many.
pub(crate) async fn note_saved(
    conn: &mut PgConnection,
    saved: &SavedByWebhook<'_>,
    sync_of: impl Fn(&ModelName) -> FunctionName,
) -> sqlx::Result<u64> {
    let Some(since) = saved.changes.since else { return Ok(0) };
    let Some(subject) = outbound_webhooks::find_subject(conn, saved.connection).await? else { return Ok(0) };
    let targets = subject.settings.targets(subject.webhook_url_override.as_deref());
    if targets.is_empty() {
        return Ok(0);
    }
    let bodies = saved.changes.streams.iter().map(|((model, variant), counts)| {
        success(&base(&subject, &sync_of(model), variant, "WEBHOOK"), model, counts, since)
    });
    write(conn, saved.environment, saved.connection, bodies.collect(), &targets).await
}

async fn write(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    connection: ConnectionPk,
    bodies: Vec<Value>,
    targets: &[(Target, &str)],
) -> sqlx::Result<u64> {
    let mut written = 0;
    for body in bodies {
        let body = &to_sorted_json(body);
        let message =
            Message { environment, connection: Some(connection), kind: "sync", body, headers: None };
        written += outbound_webhooks::enqueue(conn, &message, targets).await?;
    }
    Ok(written)
}

fn is_wanted(end: &SyncEnd<'_>, subject: &Subject) -> bool {
    match end {
        SyncEnd::Success { .. } => true,
        SyncEnd::Failure { .. } => subject.settings.on_sync_error,
    }
}

fn is_empty(counts: &ModelCounts) -> bool {
    *counts == ModelCounts::default()
}

fn base(subject: &Subject, sync: &FunctionName, variant: &Variant, sync_type: &str) -> Value {
    json!({
        "from": FROM,
        "type": "sync",
        "connectionId": subject.connection_id,
        "providerConfigKey": subject.integration_key,
        "syncName": sync,
        "syncVariant": variant,
        "syncType": sync_type,
    })
}

fn checkpoint_body(text: Option<&str>) -> Value {
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

fn success(base: &Value, model: &ModelName, counts: &ModelCounts, since: DateTime<Utc>) -> Value {
    let mut body = base.clone();
    body["model"] = model.as_str().into();
    body["success"] = true.into();
    // By the clock of the records database, so that a read with this `modified_after` misses no record.
    body["modifiedAfter"] = iso(since).into();
    body["queryTimeStamp"] = iso(since).into();
    body["responseResults"] = json!(counts);
    body
}

fn failure(
    base: &Value,
    models: &[&ModelName],
    error: &RunError,
    started_at: DateTime<Utc>,
    failed_at: DateTime<Utc>,
) -> Value {
    let mut body = base.clone();
    body["model"] = models.iter().map(|model| model.as_str()).collect::<Vec<_>>().join(",").into();
    body["success"] = false.into();
    body["startedAt"] = iso(started_at).into();
    body["failedAt"] = iso(failed_at).into();
    body["error"] = json!({
        "type": "script_error",
        "description": error.message,
        "additional_properties": { "code": error.code },
    });
    if let Some(details) = &error.details {
        body["error"]["payload"] = details.clone();
    }
    body
}

fn iso(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}
