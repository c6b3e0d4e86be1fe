//! Which databases belong together: what syncs save may lie in one of its own, and nobody may take another for it.

use sqlx::PgConnection;
use uuid::Uuid;

use super::OpenError;

const BOTH: &str = "both";
const CONTROL: &str = "control";
const RECORDS: &str = "records";

/// What a database is used for.
#[derive(Debug)]
struct Role {
    role: String,
    /// The same in both databases of a pair.
    pair_id: Uuid,
    /// Whether the other database has stored the pair too.
    is_confirmed: bool,
}

/// Uses the database for everything.
pub(super) async fn use_one(conn: &mut PgConnection) -> Result<(), OpenError> {
    note(conn, BOTH, Uuid::new_v4(), true).await?;
    match find(conn).await?.as_ref().map(|own| &*own.role) {
        Some(CONTROL) => Err(OpenError::RecordsElsewhere),
        Some(RECORDS) => Err(OpenError::RecordsOnly),
        _ => Ok(()),
    }
}

/// Uses two databases: those that were bound to each other or, for a new installation, are bound now. What is cut short
/// in between is done at the next start.
pub(super) async fn use_two(control: &mut PgConnection, records: &mut PgConnection) -> Result<(), OpenError> {
    if find(control).await?.is_none() {
        if has_records(control).await? {
            return Err(OpenError::RecordsHere);
        }
        note(control, CONTROL, Uuid::new_v4(), false).await?;
    }
    let own = find(control).await?.ok_or(OpenError::OtherRecords)?;
    match &*own.role {
        BOTH => return Err(OpenError::RecordsHere),
        RECORDS => return Err(OpenError::RecordsOnly),
        _ => {}
    }
    if find(records).await?.is_none() {
        if own.is_confirmed || has_environments(records).await? {
            return Err(OpenError::OtherRecords);
        }
        note(records, RECORDS, own.pair_id, true).await?;
    }
    let theirs = find(records).await?.ok_or(OpenError::OtherRecords)?;
    match (&*theirs.role, theirs.pair_id == own.pair_id) {
        (RECORDS, true) => {}
        (CONTROL, true) => return Err(OpenError::SameDatabase),
        _ => return Err(OpenError::OtherRecords),
    }
    sqlx::query!("UPDATE database_role SET is_confirmed = true WHERE NOT is_confirmed")
        .execute(control)
        .await?;
    Ok(())
}

async fn find(conn: &mut PgConnection) -> sqlx::Result<Option<Role>> {
    sqlx::query_as!(Role, "SELECT role, pair_id, is_confirmed FROM database_role").fetch_optional(conn).await
}

/// Unless something is noted already: of hosts that start at once, one is first.
async fn note(conn: &mut PgConnection, role: &str, pair_id: Uuid, is_confirmed: bool) -> sqlx::Result<()> {
    sqlx::query!(
        "INSERT INTO database_role (role, pair_id, is_confirmed) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
        role,
        pair_id,
        is_confirmed,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Of a database that nothing is noted in yet.
async fn has_records(conn: &mut PgConnection) -> sqlx::Result<bool> {
    sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT FROM streams) OR EXISTS (SELECT FROM sync_states) AS "has_some!""#
    )
    .fetch_one(conn)
    .await
}

async fn has_environments(conn: &mut PgConnection) -> sqlx::Result<bool> {
    sqlx::query_scalar!(r#"SELECT EXISTS (SELECT FROM environments) AS "has_some!""#).fetch_one(conn).await
}
