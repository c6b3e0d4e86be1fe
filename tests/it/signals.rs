//! A signal at any moment stops the host gracefully: exit status 0, and no private Postgres left behind.

use std::fs::{self, Permissions};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;

use sqlx::{AssertSqlSafe, PgConnection};
use tempfile::TempDir;

use crate::support::{Host, HostOptions, TestDatabase, eventually, free_port};

/// Enough attempts to hit a short moment during startup.
const TRIES: usize = 12;

/// Waits until the process handles SIGTERM. Before `main`, it cannot.
async fn wait_for_signal_handler(host: &Host) {
    let path = format!("/proc/{}/status", host.process());
    eventually("the host handles SIGTERM", async || {
        let status = fs::read_to_string(&path).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
        let caught = u64::from_str_radix(caught.trim(), 16).ok()?;
        (caught & (1 << (15 - 1)) != 0).then_some(())
    })
    .await;
}

async fn wait_for_log(host: &Host, what: &str) {
    eventually(&format!("the host logs: {what}"), async || host.log().contains(what).then_some(())).await;
}

/// Blocks the host's startup at the first statement that reads the table.
async fn lock(db: &TestDatabase, table: &str) -> PgConnection {
    let mut conn = db.connect().await;
    let lock = format!("BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE");
    sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut conn).await.expect("the table can be locked");
    conn
}

#[tokio::test]
async fn a_signal_stops_the_host_as_soon_as_it_handles_signals() {
    let db = TestDatabase::create().await;
    let mut early = 0;
    for _ in 0..TRIES {
        let mut host = HostOptions::new().database(&db).start();
        wait_for_signal_handler(&host).await;
        early += usize::from(host.log().is_empty());
        host.stop().await;
    }
    assert!(early > 0, "the host handles signals before it logs anything");
}

#[tokio::test]
async fn a_signal_stops_the_host_as_soon_as_it_serves_requests() {
    let db = TestDatabase::create().await;
    for _ in 0..TRIES {
        let mut host = HostOptions::new().database(&db).start();
        let api = host.with_key(None);
        eventually("the host listens", async || TcpStream::connect(host.address()).ok()).await;
        api.get("/health").await.expect(200);
        host.stop().await;
        assert!(host.log().contains("stopping: "), "{}", host.log());
    }
}

#[tokio::test]
async fn a_signal_stops_the_host_while_it_waits_for_postgres() {
    let url = format!("postgres://127.0.0.1:{}/nowhere", free_port());
    let mut host = HostOptions::new().variable("DATABASE_URL", &url).start();
    wait_for_log(&host, "waiting for the database").await;
    host.stop().await;
}

#[tokio::test]
async fn a_signal_stops_the_host_while_startup_waits_for_a_lock() {
    let db = TestDatabase::create().await;
    Host::spawn(&db).await.stop().await;
    let blocked = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'syncline' AND wait_event_type = 'Lock'";
    for table in ["_sqlx_migrations", "environments", "deployments"] {
        let locked = lock(&db, table).await;
        let mut host = HostOptions::new().database(&db).start();
        eventually("the host waits for a lock", async || (db.number(blocked).await > 0).then_some(())).await;
        host.stop().await;
        assert!(!host.log().contains("is ready at"), "{table}: {}", host.log());
        // A deployment would wait for a host that seems to be alive.
        assert_eq!(db.number("SELECT count(*) FROM hosts").await, 0, "{table}");
        drop(locked);
    }
    Host::spawn(&db).await.stop().await;
}

#[tokio::test]
async fn a_signal_stops_the_host_while_its_private_postgres_starts() {
    let folder = TempDir::new().expect("a temporary folder can be made");
    // Postgres cannot run as root. If the tests do, it runs as another user, who needs access to this folder.
    fs::set_permissions(folder.path(), Permissions::from_mode(0o711)).expect("the folder is writable");
    let data = folder.path().join("data");
    let pid_file = data.join("postgres/postmaster.pid");
    let start = || HostOptions::new().data_dir(&data).start();

    let mut host = start();
    wait_for_log(&host, "creating a private Postgres").await;
    host.stop().await;
    assert!(!pid_file.exists(), "{}", host.log());

    for _ in 0..TRIES / 3 {
        let mut host = start();
        eventually("its Postgres is starting", async || pid_file.exists().then_some(())).await;
        host.stop().await;
        assert!(!pid_file.exists(), "{}", host.log());

        let mut host = start();
        wait_for_log(&host, "private Postgres").await;
        host.stop().await;
        assert!(!pid_file.exists(), "{}", host.log());
    }
}
