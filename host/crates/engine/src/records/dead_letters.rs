//! Dead letters: replays a record that was set aside, or drops it.

use sqlx::PgConnection;
use uuid::Uuid;

use crate::records::Records;
use crate::records::commit::{ensure_room, incoming};
use syncline_model::records::RecordOptions;
use syncline_model::{self as model, Invalid};
use syncline_sandbox::Limit;
use syncline_store::dead_letters::{self, DeadLetter};
use syncline_store::streams::{self, LockedStream, StreamKey};
use syncline_store::{closed_connections, records};
use syncline_types::ids::{EnvironmentPk, ModelName};

/// Why a dead letter was not replayed or dropped.
#[derive(Debug, thiserror::Error)]
pub enum DeadLetterError {
    #[error("there is no dead letter `{0}` in this environment; it may have been resolved by a later save")]
    Unknown(String),
    #[error("nothing that is deployed saves the model `{0}` any more")]
    UnknownModel(ModelName),
    #[error("the record still is no `{model}`: {invalid}")]
    Refused { model: ModelName, invalid: Invalid },
    #[error(
        "the record has been saved or deleted since it was set aside; drop the letter, or let the sync save it"
    )]
    Superseded,
    #[error("{0}")]
    Limit(Limit),
    #[error("the dead letter could not be read or written")]
    Store(#[from] sqlx::Error),
    #[error("something went wrong on our side")]
    Host(#[source] anyhow::Error),
}

/// The result of replaying a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replayed {
    Added,
    Updated,
    Unchanged,
}

impl Records {
    /// Saves a record that was set aside and deletes its dead letter. Fails if the record does not match the deployed
    /// model, or was saved or deleted since.
    pub async fn replay_dead_letter(
        &self,
        environment: EnvironmentPk,
        id: Uuid,
    ) -> Result<Replayed, DeadLetterError> {
        // The keys are in the control database, so they are read before the transaction in the records database. The
        // model, and whether it is encrypted, is not known yet; an unused key does no harm.
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
        ensure_room(&stream, before, self.settings.max_stream_records).map_err(DeadLetterError::Limit)?;
        records::mark_seen(&mut tx, &stream, &saved.unchanged_positions).await?;
        dead_letters::delete(&mut tx, &mut stream, &letter).await?;
        streams::store_head(&mut tx, &stream).await?;
        tx.commit().await?;
        self.changes.note(letter.stream.connection);
        Ok(match (saved.added, saved.updated) {
            (0, 0) => Replayed::Unchanged,
            (0, _) => Replayed::Updated,
            _ => Replayed::Added,
        })
    }

    /// Deletes a dead letter without saving its record.
    pub async fn drop_dead_letter(
        &self,
        environment: EnvironmentPk,
        id: Uuid,
    ) -> Result<(), DeadLetterError> {
        let mut tx = self.store.begin_records().await?;
        let (letter, mut stream) = find_locked(&mut tx, environment, id).await?;
        dead_letters::delete(&mut tx, &mut stream, &letter).await?;
        streams::store_head(&mut tx, &stream).await?;
        tx.commit().await?;
        Ok(())
    }
}

fn host(error: impl Into<anyhow::Error>) -> DeadLetterError {
    DeadLetterError::Host(error.into())
}

/// Locks the stream of a dead letter and reads the letter again, since it may have been resolved in the meantime.
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
