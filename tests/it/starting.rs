//! What a host logs at startup, and which settings it rejects.

use crate::support::{Host, HostOptions, TestDatabase};

const NOWHERE: (&str, &str) = ("DATABASE_URL", "postgres://127.0.0.1:1/nowhere");

#[tokio::test]
async fn a_later_start_logs_nothing_about_existing_tables() {
    let db = TestDatabase::create_empty().await;
    Host::spawn(&db).await.stop().await;
    let host = Host::spawn(&db).await;
    assert!(!host.log().contains("already exists"), "{}", host.log());
}

#[tokio::test]
async fn hosts_that_start_together_create_the_tables_once() {
    let db = TestDatabase::create_empty().await;
    let (first, second) = tokio::join!(Host::spawn(&db), Host::spawn(&db));
    for host in [&first, &second] {
        host.get("/ready").await.expect(200);
    }
}

#[tokio::test]
async fn a_database_from_before_the_first_release_is_rejected_with_a_remedy() {
    for (name, change) in [
        (
            "dated migrations",
            "DELETE FROM _sqlx_migrations;
             INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
             VALUES (20261121090000, 'create environments', true, '', 0)",
        ),
        ("an earlier baseline", r"UPDATE _sqlx_migrations SET checksum = '\x00' WHERE version = 1"),
    ] {
        let db = TestDatabase::create().await;
        db.execute(change).await;
        let (status, log) = HostOptions::new().database(&db).spawn_and_wait().await;
        assert_eq!(status.code(), Some(1), "{name}: {log}");
        let message = "the database at DATABASE_URL was created by a version before the first release and cannot be \
                       upgraded: create a new database, or drop and recreate this one\n";
        assert!(log.contains(message), "{name}: {log}");
        assert!(!log.contains("_sqlx_migrations") && !log.contains("previously applied"), "{name}: {log}");
    }
}

#[tokio::test]
async fn a_database_of_a_newer_version_is_rejected_with_a_remedy() {
    let db = TestDatabase::create().await;
    db.execute(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
         VALUES (9999, 'from the future', true, '', 0)",
    )
    .await;
    let (status, log) = HostOptions::new().database(&db).spawn_and_wait().await;
    assert_eq!(status.code(), Some(1), "{log}");
    let message = "the database at DATABASE_URL was migrated by a newer version of Syncline: start that version, or \
                   restore a backup from before the upgrade\n";
    assert!(log.contains(message), "{log}");
}

#[tokio::test]
async fn a_missing_database_is_reported_once_with_the_servers_message() {
    let db = TestDatabase::create().await;
    let url = db.url();
    let (server, _) = url.rsplit_once('/').expect("a database is named");
    let options = HostOptions::new().variable("DATABASE_URL", &format!("{server}/nope"));
    let (status, log) = options.spawn_and_wait().await;
    assert!(!status.success());
    let told = "the database at DATABASE_URL cannot be used: database \"nope\" does not exist\n";
    assert!(log.contains(told), "{log}");
    assert_eq!(log.matches("does not exist").count(), 1, "{log}");
}

#[tokio::test]
async fn invalid_settings_are_reported_before_waiting_for_the_database() {
    for (name, value, reason) in [
        (
            "SYNCLINE_SECRET_KEY",
            "short",
            "SYNCLINE_SECRET_KEY is invalid\n  because: a secret key must have 16 to 255",
        ),
        (
            "SYNCLINE_EGRESS_ALLOW",
            "localhost",
            "SYNCLINE_EGRESS_ALLOW is invalid\n  because: `localhost` must be",
        ),
        ("SYNCLINE_PROVIDERS_DIR", "/nonexistent/providers", "/nonexistent/providers"),
        ("SYNCLINE_MAX_SYNCS", "many", "SYNCLINE_MAX_SYNCS cannot be `many`: it must be a whole number"),
        ("SYNCLINE_RECORD_METADATA_KEY", "id", "SYNCLINE_RECORD_METADATA_KEY cannot be `id`"),
        ("SYNCLINE_PUBLIC_URL", "example.com", "an address such as https://syncline.example.com"),
    ] {
        let options = HostOptions::new().variable(NOWHERE.0, NOWHERE.1).variable(name, value);
        let (status, log) = options.spawn_and_wait().await;
        assert!(!status.success(), "{name}");
        assert!(log.contains(reason), "{name}: {log}");
        assert!(!log.contains("waiting for the database"), "{name}: {log}");
    }
}

#[tokio::test]
async fn unknown_environment_variables_are_reported() {
    let db = TestDatabase::create().await;
    let options = HostOptions::new().database(&db).variable("SYNCLINE_MAX_SINCS", "5");
    let host = options.variable("RUST_LOG", "syncline=loud").spawn().await;
    let log = host.log();
    assert!(log.contains("ignoring unknown environment variables: SYNCLINE_MAX_SINCS;"), "{log}");
    assert!(log.contains("RUST_LOG is invalid, so the filter is `info`"), "{log}");
}
