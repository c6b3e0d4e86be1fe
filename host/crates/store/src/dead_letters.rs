//! Dead letters: records that do not match their model, set aside with the reasons. They are stored in the transaction
//! that saves the valid records of the batch, in a stream that the caller has locked.

use std::borrow::Cow;

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use super::streams::{LockedStream, StreamKey};
use crate::pages::{Page, PageLimit};
use syncline_crypto::{AssociatedData, CryptoError, PayloadKey, PayloadKeys, RecordKeys, hex};
use syncline_types::ids::{ConnectionPk, EnvironmentPk, IntegrationPk, ModelName, Variant};

/// The function and run that set a record aside.
#[derive(Debug, Clone)]
pub struct Author {
    pub environment: EnvironmentPk,
    pub integration: IntegrationPk,
    pub function: String,
    pub run_id: String,
}

/// A record to set aside.
#[derive(Debug)]
pub struct NewLetter<'a> {
    /// `None` if the id itself is invalid.
    pub external_id: Option<Cow<'a, str>>,
    pub problems: Value,
    pub payload: Cow<'a, str>,
}

impl NewLetter<'_> {
    /// Returns the key that is unique within the stream. With encryption, it does not disclose the record's text.
    fn key(&self, sealing: Option<&PayloadKey>) -> String {
        if let Some(id) = &self.external_id {
            return format!("id:{id}");
        }
        let hash = blake3::hash(self.payload.as_bytes());
        match sealing {
            None => format!("text:{}", hash.to_hex()),
            Some(key) => format!("text:{}", hex(&key.hash(hash.as_bytes()))),
        }
    }
}

/// Sets records aside. Of several records with the same id, only the last one is stored.
pub async fn set_aside(
    conn: &mut PgConnection,
    stream: &mut LockedStream,
    author: &Author,
    letters: &[NewLetter<'_>],
    keys: &PayloadKeys,
) -> sqlx::Result<()> {
    let sealing = keys.sealing().map_err(|error| sqlx::Error::Decode(error.into()))?;
    for letter in letters {
        let letter_key = letter.key(sealing);
        let sealed = sealing.map(|key| key.seal(associated_data(&letter_key), &letter.payload));
        let is_new = sqlx::query_scalar!(
            r#"
            INSERT INTO dead_letters AS kept
                (connection_pk, stream_no, letter_key, environment_pk, integration_pk, external_id, function_name,
                 run_id, problems, payload, position, first_seen_at, last_seen_at, payload_key, payload_ciphertext)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $12, $13, $14)
            ON CONFLICT (connection_pk, stream_no, letter_key) DO UPDATE
            SET function_name = excluded.function_name, run_id = excluded.run_id, problems = excluded.problems,
                payload = excluded.payload, payload_key = excluded.payload_key,
                payload_ciphertext = excluded.payload_ciphertext, position = excluded.position, times = kept.times + 1,
                last_seen_at = excluded.last_seen_at
            RETURNING times = 1 AS "is_new!"
            "#,
            stream.key.connection.0,
            stream.key.number,
            letter_key,
            author.environment.0,
            author.integration.0,
            letter.external_id.as_deref(),
            author.function,
            author.run_id,
            letter.problems,
            sealed.is_none().then_some(&*letter.payload),
            stream.last_position,
            stream.now,
            sealing.map(PayloadKey::number),
            sealed,
        )
        .fetch_one(&mut *conn)
        .await?;
        stream.dead_letters += i64::from(is_new);
    }
    Ok(())
}

/// Deletes the dead letters of records that were saved or deleted since.
pub async fn resolve(conn: &mut PgConnection, stream: &mut LockedStream, ids: &[&str]) -> sqlx::Result<()> {
    if stream.dead_letters == 0 || ids.is_empty() {
        return Ok(());
    }
    let keys: Vec<String> = ids.iter().map(|id| format!("id:{id}")).collect();
    let resolved = sqlx::query!(
        "DELETE FROM dead_letters WHERE connection_pk = $1 AND stream_no = $2 AND letter_key = ANY($3)",
        stream.key.connection.0,
        stream.key.number,
        &keys,
    )
    .execute(conn)
    .await?;
    stream.dead_letters -= resolved.rows_affected().cast_signed();
    Ok(())
}

/// Deletes all dead letters of a stream.
pub async fn delete_all(conn: &mut PgConnection, key: StreamKey) -> sqlx::Result<()> {
    sqlx::query!(
        "DELETE FROM dead_letters WHERE connection_pk = $1 AND stream_no = $2",
        key.connection.0,
        key.number,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// A stored dead letter.
#[derive(Debug, Clone)]
pub struct DeadLetter {
    pub number: i64,
    pub id: Uuid,
    pub stream: StreamKey,
    pub model: ModelName,
    pub variant: Variant,
    pub integration: IntegrationPk,
    pub external_id: Option<String>,
    pub function: String,
    pub run_id: String,
    pub problems: Value,
    payload: Option<String>,
    payload_ciphertext: Option<Vec<u8>>,
    payload_key: Option<i32>,
    letter_key: String,
    pub position: i64,
    pub times: i64,
    pub first_seen_at: DateTime<Utc>,
    pub last_seen_at: DateTime<Utc>,
}

/// A dead letter that cannot be decrypted.
#[derive(Debug, thiserror::Error)]
#[error("dead letter {id} of model `{model}` cannot be decrypted")]
pub struct UnreadableLetter {
    id: Uuid,
    model: ModelName,
    source: CryptoError,
}

impl DeadLetter {
    /// Returns the number of the record key that encrypted the payload, if it is encrypted.
    pub fn payload_key(&self) -> Option<i32> {
        self.payload_key
    }

    fn payload_bytes(&self) -> usize {
        let sealed = self.payload_ciphertext.as_ref().map_or(0, Vec::len);
        self.payload.as_ref().map_or(sealed, String::len)
    }

    /// Returns the record as it was saved.
    pub fn payload(&self, keys: &RecordKeys) -> Result<String, UnreadableLetter> {
        let StreamKey { connection, number } = self.stream;
        let open = || match (&self.payload, &self.payload_ciphertext) {
            (Some(payload), _) => Ok(payload.clone()),
            (None, sealed) => {
                let keys = keys.of_stream(connection.0, number, false);
                let key = keys.get(self.payload_key.unwrap_or_default())?;
                key.open(associated_data(&self.letter_key), sealed.as_deref().unwrap_or_default())
            }
        };
        open().map_err(|source| UnreadableLetter { id: self.id, model: self.model.clone(), source })
    }
}

fn associated_data(letter_key: &str) -> AssociatedData<'_> {
    AssociatedData { column: "dead_letters.payload_ciphertext", row: letter_key }
}

/// Selects dead letters `l` from `$from`, with their streams `s`.
macro_rules! query_letters {
    ($from:literal, $rest:literal, $($parameter:expr),* $(,)?) => {
        sqlx::query!(
            r#"
        SELECT l.number, l.id, l.connection_pk, l.stream_no, s.model, s.variant, l.integration_pk, l.external_id,
               l.function_name, l.run_id, l.problems, l.payload, l.payload_key, l.payload_ciphertext, l.letter_key,
               l.position, l.times, l.first_seen_at, l.last_seen_at
        FROM "#
                + $from
                + r#" AS l
        JOIN streams s ON s.connection_pk = l.connection_pk AND s.stream_no = l.stream_no
        "# + $rest,
            $($parameter),*
        )
        .map(|row| DeadLetter {
            number: row.number,
            id: row.id,
            stream: StreamKey { connection: ConnectionPk(row.connection_pk), number: row.stream_no },
            model: ModelName::from_stored(row.model),
            variant: Variant::from_stored(row.variant),
            integration: IntegrationPk(row.integration_pk),
            external_id: row.external_id,
            function: row.function_name,
            run_id: row.run_id,
            problems: row.problems,
            payload: row.payload,
            payload_ciphertext: row.payload_ciphertext,
            payload_key: row.payload_key,
            letter_key: row.letter_key,
            position: row.position,
            times: row.times,
            first_seen_at: row.first_seen_at,
            last_seen_at: row.last_seen_at,
        })
    };
}

/// Which dead letters of an environment to list.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    pub integration: Option<IntegrationPk>,
    pub connection: Option<ConnectionPk>,
    pub model: Option<ModelName>,
    /// Only dead letters after this number.
    pub after: i64,
}

/// Lists the next dead letters, in the order in which they were first set aside.
pub async fn list(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    filter: &Filter,
    limit: PageLimit,
) -> sqlx::Result<Page<DeadLetter>> {
    let model = filter.model.as_ref().map(ModelName::as_str);
    if let Some(connection) = filter.connection {
        // Does not filter by environment, because the planner could choose that index instead.
        let letters = query_letters!(
            "dead_letters",
            r#"WHERE l.connection_pk = $1 AND l.number > $2 AND ($3::text IS NULL OR s.model = $3)
        ORDER BY l.number LIMIT $4
        "#,
            connection.0,
            filter.after,
            model,
            limit.rows,
        )
        .fetch(conn);
        return Page::read(letters, limit.bytes, DeadLetter::payload_bytes).await;
    }
    let letters = query_letters!(
        "dead_letters",
        r#"WHERE l.environment_pk = $1 AND l.number > $2 AND ($3::bigint IS NULL OR l.integration_pk = $3)
          AND ($4::text IS NULL OR s.model = $4)
        ORDER BY l.number LIMIT $5
        "#,
        environment.0,
        filter.after,
        filter.integration.map(|integration| integration.0),
        model,
        limit.rows,
    )
    .fetch(conn);
    Page::read(letters, limit.bytes, DeadLetter::payload_bytes).await
}

/// Finds a dead letter of an environment.
pub async fn find(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    id: Uuid,
) -> sqlx::Result<Option<DeadLetter>> {
    query_letters!(
        "(SELECT * FROM dead_letters WHERE id >= $1 AND id <= $1 ORDER BY id LIMIT 1)",
        "WHERE l.environment_pk = $2",
        id,
        environment.0,
    )
    .fetch_optional(conn)
    .await
}

/// Deletes one dead letter of a locked stream.
pub async fn delete(
    conn: &mut PgConnection,
    stream: &mut LockedStream,
    letter: &DeadLetter,
) -> sqlx::Result<()> {
    let deleted = sqlx::query!(
        "DELETE FROM dead_letters WHERE connection_pk = $1 AND stream_no = $2 AND letter_key = $3",
        stream.key.connection.0,
        stream.key.number,
        letter.letter_key,
    )
    .execute(conn)
    .await?;
    stream.dead_letters -= deleted.rows_affected().cast_signed();
    Ok(())
}
