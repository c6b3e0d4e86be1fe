//! Binds a control database and a records database to each other, so that a host never uses databases that do not
//! belong together.

use sqlx::PgConnection;
use uuid::Uuid;

use super::OpenError;

const BOTH: &str = "both";
const CONTROL: &str = "control";
const RECORDS: &str = "records";

/// The use of a database.
#[derive(Debug)]
struct Role {
    role: String,
    /// The same in both databases of a pair.
    pair_id: Uuid,
    /// Whether the other database has stored the pair too.
    is_confirmed: bool,
}

/// Uses one database for everything.
pub(super) async fn use_one(conn: &mut PgConnection) -> Result<(), OpenError> {
    store_role(conn, BOTH, Uuid::new_v4(), true).await?;
    match find(conn).await?.as_ref().map(|own| &*own.role) {
        Some(CONTROL) => Err(OpenError::RecordsElsewhere),
        Some(RECORDS) => Err(OpenError::RecordsOnly),
        _ => Ok(()),
    }
}

/// Uses two databases that are bound to each other, and binds them in a new installation. An interrupted binding is
/// finished at the next start.
pub(super) async fn use_two(control: &mut PgConnection, records: &mut PgConnection) -> Result<(), OpenError> {
    if find(control).await?.is_none() {
        if has_records(control).await? {
            return Err(OpenError::RecordsHere);
        }
        store_role(control, CONTROL, Uuid::new_v4(), false).await?;
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
        store_role(records, RECORDS, own.pair_id, true).await?;
    }
    let other = find(records).await?.ok_or(OpenError::OtherRecords)?;
    match (&*other.role, other.pair_id == own.pair_id) {
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

/// Stores the role unless one is stored already: another host may have started at the same time.
async fn store_role(
    conn: &mut PgConnection,
    role: &str,
    pair_id: Uuid,
    is_confirmed: bool,
) -> sqlx::Result<()> {
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

/// Whether a database without a role contains records.
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
