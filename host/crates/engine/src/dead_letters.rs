//! Dead letters: records that were set aside because they do not match their model. They can be listed, replayed and
//! dropped.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::audit_log::commit_records;
use crate::connections::cache::ConnectionCache;
use crate::functions::Functions;
use crate::lookup::{LookupError, NamedScope};
use crate::records::RecordSettings;
use crate::records::changes::RecordChanges;
use crate::records::commit::{check_stream_limit, incoming};
use syncline_auth::Environments;
use syncline_model::records::RecordOptions;
use syncline_model::{self as model, Invalid};
use syncline_sandbox::Limit;
use syncline_store::audit_log::NewEntry;
pub use syncline_store::dead_letters::DeadLetter;
use syncline_store::dead_letters::{self, Filter};
use syncline_store::pages::PageLimit;
use syncline_store::runs::Scope;
use syncline_store::streams::{self, LockedStream, StreamKey};
use syncline_store::{Store, closed_connections, connections, records};
use syncline_telemetry::failpoints::{self, Step};
use syncline_types::actor::Actor;
use syncline_types::audit_log::{AuditAction, TargetKind};
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::{ConnectionId, EnvironmentPk, IntegrationKey, ModelName};

/// Selects dead letters of an environment.
#[derive(Debug)]
pub struct DeadLetterFilter {
    pub scope: NamedScope,
    pub model: Option<ModelName>,
    /// Only letters with a higher number.
    pub after: i64,
}

/// A dead letter with the names of its connection, and its decrypted payload.
#[derive(Debug)]
pub struct ListedLetter {
    pub letter: DeadLetter,
    pub integration: IntegrationKey,
    pub connection: ConnectionId,
    /// The record, as it was saved.
    pub payload: String,
}

/// A page of dead letters.
#[derive(Debug)]
pub struct DeadLetterPage {
    pub letters: Vec<ListedLetter>,
    /// The number of the last letter of this page, if there is another page.
    pub last: Option<i64>,
}

/// Why dead letters were not listed, replayed or dropped.
#[derive(Debug, thiserror::Error)]
pub enum DeadLetterError {
    #[error("there is no dead letter `{0}` in this environment; it may have been resolved by a later save")]
    Unknown(String),
    #[error("no deployed function saves model `{0}`; deploy one before you replay the dead letter")]
    UnknownModel(ModelName),
    #[error("the record still does not match model `{model}`: {invalid}")]
    Refused { model: ModelName, invalid: Invalid },
    #[error("the record was saved or deleted after it was set aside; drop the dead letter")]
    Superseded,
    #[error("{0}")]
    Limit(Limit),
    #[error(transparent)]
    Lookup(#[from] LookupError),
    #[error("the dead letter could not be read or written")]
    Store(#[from] sqlx::Error),
    #[error("an internal error occurred; try again")]
    Host(#[source] anyhow::Error),
}

impl DeadLetterError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Unknown(_) => ErrorCode::UnknownDeadLetter,
            Self::UnknownModel(_) => ErrorCode::UnknownModel,
            Self::Refused { .. } => ErrorCode::DeadLetterRefused,
            Self::Superseded => ErrorCode::DeadLetterSuperseded,
            Self::Limit(_) => ErrorCode::LimitExceeded,
            Self::Lookup(error) => error.code(),
            Self::Store(_) | Self::Host(_) => ErrorCode::InternalServerError,
        }
    }
}

/// The result of replaying a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replayed {
    Added,
    Updated,
    Unchanged,
}

/// Lists, replays and drops dead letters.
pub struct DeadLetters {
    store: Store,
    environments: Arc<Environments>,
    functions: Arc<Functions>,
    connections: Arc<ConnectionCache>,
    changes: Arc<RecordChanges>,
    settings: RecordSettings,
}

impl DeadLetters {
    pub fn new(
        store: Store,
        environments: Arc<Environments>,
        functions: Arc<Functions>,
        connections: Arc<ConnectionCache>,
        changes: Arc<RecordChanges>,
        settings: RecordSettings,
    ) -> Self {
        Self { store, environments, functions, connections, changes, settings }
    }

    /// Returns up to `limit` letters of an environment, in the order in which they were first set aside.
    pub async fn list(
        &self,
        environment: EnvironmentPk,
        filter: DeadLetterFilter,
        limit: i64,
    ) -> Result<DeadLetterPage, DeadLetterError> {
        let DeadLetterFilter { scope, model, after } = filter;
        let filter = match self.connections.resolve(environment, &scope).await? {
            Scope::Environment => Filter { model, after, ..Filter::default() },
            Scope::Integration(pk) => Filter { integration: Some(pk), model, after, ..Filter::default() },
            Scope::Connection(pk) => Filter { connection: Some(pk), model, after, ..Filter::default() },
        };
        let mut conn = self.store.connect_records().await?;
        // Read one more letter than requested, to find out whether there is a next page.
        let one_more = PageLimit { rows: limit + 1, bytes: self.settings.max_page_bytes };
        let mut page = dead_letters::list(&mut conn, environment, &filter, one_more).await?;
        page.release(conn);
        let has_more = page.truncate(limit);
        let last = page.rows.last().filter(|_| has_more).map(|letter| letter.number);
        let letters = self.open(environment, page.rows).await?;
        Ok(DeadLetterPage { letters, last })
    }

    /// Returns one letter.
    pub async fn get(&self, environment: EnvironmentPk, id: Uuid) -> Result<ListedLetter, DeadLetterError> {
        let found = dead_letters::find(&mut *self.store.connect_records().await?, environment, id).await?;
        let letters = self.open(environment, found.into_iter().collect()).await?;
        letters.into_iter().next().ok_or_else(|| DeadLetterError::Unknown(id.to_string()))
    }

    /// Adds names and payloads. Omits letters of deleted connections, which are removed soon.
    async fn open(
        &self,
        environment: EnvironmentPk,
        found: Vec<DeadLetter>,
    ) -> Result<Vec<ListedLetter>, DeadLetterError> {
        let mut pks: Vec<_> = found.iter().map(|letter| letter.stream.connection).collect();
        pks.dedup();
        let names = connections::names(&mut *self.store.connect().await?, &pks).await?;
        let names: HashMap<_, _> = names.into_iter().map(|(pk, key, id)| (pk, (key, id))).collect();
        let newest_key = found.iter().filter_map(DeadLetter::payload_key).max();
        let keys = match newest_key {
            Some(number) => self.environments.record_keys_with(environment, number).await,
            None => self.environments.record_keys(environment).await,
        };
        let keys = keys.map_err(host)?;
        let named = found.into_iter().filter_map(|letter| {
            let (integration, connection) = names.get(&letter.stream.connection)?.clone();
            Some((letter, integration, connection))
        });
        named
            .map(|(letter, integration, connection)| {
                let payload = letter.payload(&keys).map_err(host)?;
                Ok(ListedLetter { letter, integration, connection, payload })
            })
            .collect()
    }

    /// Saves a record that was set aside, if it matches the deployed model and has not changed since. Then removes the
    /// letter.
    pub async fn replay(
        &self,
        environment: EnvironmentPk,
        id: Uuid,
        actor: &Actor,
    ) -> Result<Replayed, DeadLetterError> {
        // The keys are in the control database, so they are read before the transaction in the records database begins.
        // It is not known yet whether the model is encrypted; an unused key does no harm.
        let record_keys = self.environments.ensure_record_keys(environment).await.map_err(host)?;
        let mut tx = self.store.begin_records().await?;
        let (letter, mut stream) = find_locked(&mut tx, environment, id).await?;
        let function = self
            .functions
            .find_saving(letter.integration, &letter.model)
            .ok_or_else(|| DeadLetterError::UnknownModel(letter.model.clone()))?;
        let options = RecordOptions {
            metadata_key: &self.settings.metadata_key,
            max_bytes: function.limits.record_bytes,
        };
        let model = &function.models[&letter.model];
        let payload = letter.payload(&record_keys).map_err(host)?;
        let record = model::records::single(&payload, &model.shape, options)
            .map_err(|invalid| DeadLetterError::Refused { model: letter.model.clone(), invalid })?;
        if records::positions(&mut tx, stream.key, &[&record.id]).await?.max()
            > Some(letter.position.cast_unsigned())
        {
            return Err(DeadLetterError::Superseded);
        }
        let before = stream.total_count;
        let StreamKey { connection, number } = stream.key;
        let keys = record_keys.of_stream(connection.0, number, model.keeping.encrypt);
        let saved = records::save(&mut tx, &mut stream, &[incoming(record)], &keys, true).await?;
        check_stream_limit(&stream, before, self.settings.max_stream_records)
            .map_err(DeadLetterError::Limit)?;
        records::mark_seen(&mut tx, &stream, &saved.unchanged_positions).await?;
        dead_letters::delete(&mut tx, &mut stream, &letter).await?;
        streams::store_head(&mut tx, &stream).await?;
        let entry = entry_of(environment, AuditAction::DeadLetterReplayed, &letter);
        failpoints::reach(Step::LetterReplaying);
        commit_records(&self.store, tx, actor, &entry).await?;
        failpoints::reach(Step::LetterReplayed);
        self.changes.note(letter.stream.connection);
        Ok(match (saved.added, saved.updated) {
            (0, 0) => Replayed::Unchanged,
            (0, _) => Replayed::Updated,
            _ => Replayed::Added,
        })
    }

    /// Drops a letter permanently.
    pub async fn discard(
        &self,
        environment: EnvironmentPk,
        id: Uuid,
        actor: &Actor,
    ) -> Result<(), DeadLetterError> {
        let mut tx = self.store.begin_records().await?;
        let (letter, mut stream) = find_locked(&mut tx, environment, id).await?;
        dead_letters::delete(&mut tx, &mut stream, &letter).await?;
        streams::store_head(&mut tx, &stream).await?;
        let entry = entry_of(environment, AuditAction::DeadLetterDeleted, &letter);
        Ok(commit_records(&self.store, tx, actor, &entry).await?)
    }
}

fn entry_of(environment: EnvironmentPk, action: AuditAction, letter: &DeadLetter) -> NewEntry {
    NewEntry::new(environment, action, TargetKind::DeadLetter, letter.id.to_string())
        .with(json!({ "model": letter.model.as_str() }))
}

fn host(error: impl Into<anyhow::Error>) -> DeadLetterError {
    DeadLetterError::Host(error.into())
}

/// Returns a letter, and its stream with a lock. Reads the letter again under the lock, because it may have been
/// resolved meanwhile.
async fn find_locked(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    id: Uuid,
) -> Result<(DeadLetter, LockedStream), DeadLetterError> {
    let unknown = || DeadLetterError::Unknown(id.to_string());
    let letter = dead_letters::find(conn, environment, id).await?.ok_or_else(unknown)?;
    let connection = letter.stream.connection;
    if !closed_connections::hold_open(conn, connection).await? {
        return Err(unknown());
    }
    let name = (letter.model, letter.variant);
    let stream = streams::lock(conn, connection, &[name], None).await?.pop().ok_or_else(unknown)?;
    let letter = dead_letters::find(conn, environment, id).await?.ok_or_else(unknown)?;
    Ok((letter, stream))
}
