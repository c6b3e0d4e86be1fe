//! The accounts of people who use the dashboard, their sessions, their one-time links, and failed attempts to sign in.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use sqlx::postgres::types::PgInterval;
use uuid::Uuid;

use crate::enums::parse;
use syncline_types::accounts::Role;
use syncline_types::ids::AccountPk;

/// Any constant: serializes changes of which accounts are administrators.
const ADMINISTRATORS_LOCK: i64 = 0x7379_6e63_6163_6374;

/// An account.
#[derive(Debug, Clone)]
pub struct StoredAccount {
    pub pk: AccountPk,
    pub id: Uuid,
    pub email: String,
    pub name: String,
    pub role: Role,
    /// In PHC format. `None` until the person has chosen a password.
    pub password_hash: Option<String>,
    pub created_at: DateTime<Utc>,
    pub last_sign_in_at: Option<DateTime<Utc>>,
}

/// An account to create.
#[derive(Debug)]
pub struct NewAccount<'a> {
    /// In lower case.
    pub email: &'a str,
    pub name: &'a str,
    pub role: Role,
    pub password_hash: Option<&'a str>,
}

struct Row {
    pk: i64,
    id: Uuid,
    email: String,
    name: String,
    role: String,
    password_hash: Option<String>,
    created_at: DateTime<Utc>,
    last_sign_in_at: Option<DateTime<Utc>>,
}

impl TryFrom<Row> for StoredAccount {
    type Error = sqlx::Error;

    fn try_from(row: Row) -> sqlx::Result<Self> {
        Ok(Self {
            pk: AccountPk(row.pk),
            id: row.id,
            email: row.email,
            name: row.name,
            role: parse("role", &row.role)?,
            password_hash: row.password_hash,
            created_at: row.created_at,
            last_sign_in_at: row.last_sign_in_at,
        })
    }
}

/// Creates an account. Returns `None` if the email address is in use.
pub async fn create(conn: &mut PgConnection, new: &NewAccount<'_>) -> sqlx::Result<Option<StoredAccount>> {
    let row = sqlx::query_as!(
        Row,
        r#"
        INSERT INTO accounts (email, name, role, password_hash) VALUES ($1, $2, $3, $4)
        ON CONFLICT (email) DO NOTHING
        RETURNING pk, id, email, name, role, password_hash, created_at, last_sign_in_at
        "#,
        new.email,
        new.name,
        new.role.as_str(),
        new.password_hash,
    )
    .fetch_optional(conn)
    .await?;
    row.map(StoredAccount::try_from).transpose()
}

/// Lists all accounts in the order of their addresses.
pub async fn list(conn: &mut PgConnection) -> sqlx::Result<Vec<StoredAccount>> {
    let rows = sqlx::query_as!(
        Row,
        r#"
        SELECT pk, id, email, name, role, password_hash, created_at, last_sign_in_at FROM accounts ORDER BY email
        "#,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter().map(StoredAccount::try_from).collect()
}

pub async fn find_by_email(conn: &mut PgConnection, email: &str) -> sqlx::Result<Option<StoredAccount>> {
    let row = sqlx::query_as!(
        Row,
        r#"
        SELECT pk, id, email, name, role, password_hash, created_at, last_sign_in_at FROM accounts WHERE email = $1
        "#,
        email,
    )
    .fetch_optional(conn)
    .await?;
    row.map(StoredAccount::try_from).transpose()
}

/// Finds an account and locks its row.
pub async fn lock(conn: &mut PgConnection, id: Uuid) -> sqlx::Result<Option<StoredAccount>> {
    let row = sqlx::query_as!(
        Row,
        r#"
        SELECT pk, id, email, name, role, password_hash, created_at, last_sign_in_at FROM accounts WHERE id = $1
        FOR UPDATE
        "#,
        id,
    )
    .fetch_optional(conn)
    .await?;
    row.map(StoredAccount::try_from).transpose()
}

/// Whether there is any account.
pub async fn any_exists(conn: &mut PgConnection) -> sqlx::Result<bool> {
    sqlx::query_scalar!(r#"SELECT EXISTS (SELECT FROM accounts) AS "exists!""#).fetch_one(conn).await
}

/// Locks the set of administrators until the end of the transaction, and counts those who can sign in.
pub async fn lock_administrators(conn: &mut PgConnection) -> sqlx::Result<i64> {
    sqlx::query!("SELECT pg_advisory_xact_lock($1)", ADMINISTRATORS_LOCK).execute(&mut *conn).await?;
    sqlx::query_scalar!(
        r#"
        SELECT count(*) AS "count!" FROM accounts WHERE role = 'administrator' AND password_hash IS NOT NULL
        "#,
    )
    .fetch_one(conn)
    .await
}

pub async fn set_role(conn: &mut PgConnection, account: AccountPk, role: Role) -> sqlx::Result<()> {
    sqlx::query!("UPDATE accounts SET role = $2 WHERE pk = $1", account.0, role.as_str())
        .execute(conn)
        .await?;
    Ok(())
}

pub async fn set_password(conn: &mut PgConnection, account: AccountPk, hash: &str) -> sqlx::Result<()> {
    sqlx::query!("UPDATE accounts SET password_hash = $2 WHERE pk = $1", account.0, hash)
        .execute(conn)
        .await?;
    Ok(())
}

/// Deletes an account with its sessions and links.
pub async fn delete(conn: &mut PgConnection, account: AccountPk) -> sqlx::Result<()> {
    sqlx::query!("DELETE FROM accounts WHERE pk = $1", account.0).execute(conn).await?;
    Ok(())
}

/// A browser that is signed in, as its owner sees it.
#[derive(Debug, Clone)]
pub struct StoredAccountSession {
    pub id: Uuid,
    pub address: Option<String>,
    pub user_agent: Option<String>,
    pub created_at: DateTime<Utc>,
    pub last_used_at: DateTime<Utc>,
}

/// A session to create.
#[derive(Debug)]
pub struct NewAccountSession<'a> {
    pub account: AccountPk,
    pub token_hash: &'a [u8],
    pub address: Option<&'a str>,
    pub user_agent: Option<&'a str>,
    /// Time until the session ends, however much it is used.
    pub lifetime: Duration,
}

/// Creates a session, and stores when the account last signed in.
pub async fn create_session(conn: &mut PgConnection, new: &NewAccountSession<'_>) -> sqlx::Result<Uuid> {
    sqlx::query_scalar!(
        r#"
        WITH signed_in AS (
            UPDATE accounts SET last_sign_in_at = now() WHERE pk = $1 RETURNING pk
        )
        INSERT INTO account_sessions (account_pk, token_hash, address, user_agent, expires_at)
        SELECT pk, $2, $3, $4, now() + $5 FROM signed_in
        RETURNING id
        "#,
        new.account.0,
        new.token_hash,
        new.address,
        new.user_agent,
        interval(new.lifetime),
    )
    .fetch_one(conn)
    .await
}

/// The account of a valid session.
#[derive(Debug)]
pub struct FoundSession {
    pub id: Uuid,
    pub account: StoredAccount,
    pub last_used_at: DateTime<Utc>,
}

/// Finds a session that has neither expired nor been unused for longer than `max_idle`.
pub async fn find_session(
    conn: &mut PgConnection,
    token_hash: &[u8],
    max_idle: Duration,
) -> sqlx::Result<Option<FoundSession>> {
    let row = sqlx::query!(
        r#"
        SELECT s.id AS session_id, s.last_used_at,
               a.pk, a.id, a.email, a.name, a.role, a.password_hash, a.created_at, a.last_sign_in_at
        FROM account_sessions s JOIN accounts a ON a.pk = s.account_pk
        WHERE s.token_hash = $1 AND s.expires_at > now() AND s.last_used_at > now() - $2::interval
        "#,
        token_hash,
        interval(max_idle),
    )
    .fetch_optional(conn)
    .await?;
    row.map(|row| {
        let account = Row {
            pk: row.pk,
            id: row.id,
            email: row.email,
            name: row.name,
            role: row.role,
            password_hash: row.password_hash,
            created_at: row.created_at,
            last_sign_in_at: row.last_sign_in_at,
        };
        Ok(FoundSession { id: row.session_id, account: account.try_into()?, last_used_at: row.last_used_at })
    })
    .transpose()
}

/// Stores that a session was used now.
pub async fn note_session_used(conn: &mut PgConnection, id: Uuid) -> sqlx::Result<()> {
    sqlx::query!("UPDATE account_sessions SET last_used_at = now() WHERE id = $1", id).execute(conn).await?;
    Ok(())
}

/// Lists the sessions of an account, the most recently used first.
pub async fn list_sessions(
    conn: &mut PgConnection,
    account: AccountPk,
    max_idle: Duration,
) -> sqlx::Result<Vec<StoredAccountSession>> {
    sqlx::query_as!(
        StoredAccountSession,
        r#"
        SELECT id, address, user_agent, created_at, last_used_at FROM account_sessions
        WHERE account_pk = $1 AND expires_at > now() AND last_used_at > now() - $2::interval
        ORDER BY last_used_at DESC
        "#,
        account.0,
        interval(max_idle),
    )
    .fetch_all(conn)
    .await
}

/// Ends a session of an account. Returns `false` if it does not exist.
pub async fn delete_session(conn: &mut PgConnection, account: AccountPk, id: Uuid) -> sqlx::Result<bool> {
    let done = sqlx::query!("DELETE FROM account_sessions WHERE account_pk = $1 AND id = $2", account.0, id)
        .execute(conn)
        .await?;
    Ok(done.rows_affected() == 1)
}

/// Ends all sessions of an account except `kept`.
pub async fn delete_sessions(
    conn: &mut PgConnection,
    account: AccountPk,
    kept: Option<Uuid>,
) -> sqlx::Result<()> {
    sqlx::query!(
        "DELETE FROM account_sessions WHERE account_pk = $1 AND ($2::uuid IS NULL OR id <> $2)",
        account.0,
        kept,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Stores a one-time link and deletes earlier links for the same purpose. Without an account, the link creates the
/// first account.
pub async fn replace_link(
    conn: &mut PgConnection,
    account: Option<AccountPk>,
    token_hash: &[u8],
    lifetime: Duration,
) -> sqlx::Result<()> {
    let account = account.map(|account| account.0);
    sqlx::query!("DELETE FROM account_links WHERE account_pk IS NOT DISTINCT FROM $1", account)
        .execute(&mut *conn)
        .await?;
    sqlx::query!(
        "INSERT INTO account_links (token_hash, account_pk, expires_at) VALUES ($1, $2, now() + $3)",
        token_hash,
        account,
        interval(lifetime),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// What a link is for.
#[derive(Debug, Clone)]
pub enum LinkPurpose {
    /// Creating the first account.
    FirstAccount,
    /// Choosing the password of an account.
    Password(StoredAccount),
}

/// Finds a link that has not expired, and locks it.
pub async fn lock_link(conn: &mut PgConnection, token_hash: &[u8]) -> sqlx::Result<Option<LinkPurpose>> {
    let link = sqlx::query!(
        "SELECT account_pk FROM account_links WHERE token_hash = $1 AND expires_at > now() FOR UPDATE",
        token_hash,
    )
    .fetch_optional(&mut *conn)
    .await?;
    let Some(link) = link else { return Ok(None) };
    let Some(account) = link.account_pk else { return Ok(Some(LinkPurpose::FirstAccount)) };
    let row = sqlx::query_as!(
        Row,
        r#"
        SELECT pk, id, email, name, role, password_hash, created_at, last_sign_in_at FROM accounts WHERE pk = $1
        "#,
        account,
    )
    .fetch_one(conn)
    .await?;
    Ok(Some(LinkPurpose::Password(row.try_into()?)))
}

/// Deletes the links of an account, or those that create the first account.
pub async fn delete_links(conn: &mut PgConnection, account: Option<AccountPk>) -> sqlx::Result<()> {
    sqlx::query!(
        "DELETE FROM account_links WHERE account_pk IS NOT DISTINCT FROM $1",
        account.map(|account| account.0),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Returns how long sign-ins with this address are locked, or `None` if they are not.
pub async fn sign_in_lock(conn: &mut PgConnection, email_hash: &[u8]) -> sqlx::Result<Option<Duration>> {
    let seconds = sqlx::query_scalar!(
        r#"
        SELECT extract(epoch FROM locked_until - now())::float8 AS "seconds!"
        FROM sign_in_failures WHERE email_hash = $1 AND locked_until > now()
        "#,
        email_hash,
    )
    .fetch_optional(conn)
    .await?;
    Ok(seconds.map(|seconds| Duration::from_secs_f64(seconds.max(0.0))))
}

/// Counts a failed sign-in. From `free_failures` on, each failure locks the address, first for `first_lock` and then
/// for twice as long as before, up to `longest_lock`.
pub async fn note_sign_in_failure(
    conn: &mut PgConnection,
    email_hash: &[u8],
    free_failures: i32,
    first_lock: Duration,
    longest_lock: Duration,
) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        INSERT INTO sign_in_failures AS f (email_hash, failures) VALUES ($1, 1)
        ON CONFLICT (email_hash) DO UPDATE SET
            failures = f.failures + 1,
            last_failure_at = now(),
            locked_until = CASE WHEN f.failures + 1 >= $2
                THEN now() + least($3::interval * power(2, least(f.failures + 1 - $2, 20)), $4::interval)
            END
        "#,
        email_hash,
        free_failures,
        interval(first_lock),
        interval(longest_lock),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Forgets the failed sign-ins of an address.
pub async fn clear_sign_in_failures(conn: &mut PgConnection, email_hash: &[u8]) -> sqlx::Result<()> {
    sqlx::query!("DELETE FROM sign_in_failures WHERE email_hash = $1", email_hash).execute(conn).await?;
    Ok(())
}

/// Deletes expired sessions and links, and failed sign-ins older than `failures_kept_for`. Returns the number of
/// deleted rows.
pub async fn delete_expired(
    conn: &mut PgConnection,
    max_idle: Duration,
    failures_kept_for: Duration,
) -> sqlx::Result<u64> {
    let sessions = sqlx::query!(
        "DELETE FROM account_sessions WHERE expires_at <= now() OR last_used_at <= now() - $1::interval",
        interval(max_idle),
    )
    .execute(&mut *conn)
    .await?;
    let links =
        sqlx::query!("DELETE FROM account_links WHERE expires_at <= now()").execute(&mut *conn).await?;
    let failures = sqlx::query!(
        "DELETE FROM sign_in_failures WHERE last_failure_at <= now() - $1::interval",
        interval(failures_kept_for),
    )
    .execute(conn)
    .await?;
    Ok(sessions.rows_affected() + links.rows_affected() + failures.rows_affected())
}

fn interval(duration: Duration) -> PgInterval {
    PgInterval { months: 0, days: 0, microseconds: duration.as_micros() as i64 }
}
