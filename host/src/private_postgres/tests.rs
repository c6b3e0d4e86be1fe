//! Failures that a private Postgres survives, tested with a real one.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, mem, thread};

use rustix::process::{Pid, Signal, kill_process};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::*;

/// Tells [`owner_of_a_postgres`] which data directory to use.
const OWNED_DATA_DIR: &str = "SYNCLINE_TEST_OWNED_DATA_DIR";

const BUSY_FOR_TWO_SECONDS: &str =
    "DO $$ BEGIN WHILE clock_timestamp() < now() + interval '2 s' LOOP END LOOP; END $$";

/// Returns a data directory that the server's user can access. It is removed at the end.
fn data_dir() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::Permissions::from_mode(0o711);
    tempfile::Builder::new().prefix("syncline-test-").permissions(mode).tempdir().unwrap()
}

async fn execute(options: &PgConnectOptions, sql: &str) {
    let mut connection = PgConnection::connect_with(options).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.unwrap();
}

async fn fetch_text(options: &PgConnectOptions, sql: &str) -> String {
    let mut connection = PgConnection::connect_with(options).await.unwrap();
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(&mut connection).await.unwrap()
}

async fn write_note(postgres: &PrivatePostgres, note: &str) {
    let sql = format!("CREATE TABLE IF NOT EXISTS notes (note text); INSERT INTO notes VALUES ('{note}')");
    execute(postgres.connect_options(), &sql).await;
}

async fn notes(options: &PgConnectOptions) -> String {
    fetch_text(options, "SELECT string_agg(note, ' ' ORDER BY note) FROM notes").await
}

fn live_pid(data_dir: &Path) -> Option<Pid> {
    pid_file::find_live(&cluster::directory(data_dir)).unwrap().map(|file| file.pid)
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let started_at = Instant::now();
    while !is_so() {
        assert!(started_at.elapsed() < Duration::from_secs(20), "timed out waiting until {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[tokio::test]
async fn data_survives_a_restart() {
    let dir = data_dir();
    let postgres = PrivatePostgres::start(dir.path()).await.unwrap();
    write_note(&postgres, "kept").await;
    postgres.stop().await.unwrap();
    assert_eq!(live_pid(dir.path()), None);
    assert!(find_running(dir.path()).unwrap().is_none());

    let postgres = PrivatePostgres::start(dir.path()).await.unwrap();
    assert_eq!(notes(postgres.connect_options()).await, "kept");
    postgres.stop().await.unwrap();
}

#[tokio::test]
async fn the_cluster_is_durable_has_checksums_and_listens_only_on_a_socket() {
    let dir = data_dir();
    let postgres = PrivatePostgres::start(dir.path()).await.unwrap();
    let settings =
        "SELECT string_agg(name || '=' || setting, ' ' ORDER BY name) FROM pg_settings WHERE name IN
        ('fsync', 'synchronous_commit', 'full_page_writes', 'data_checksums', 'listen_addresses',
         'server_encoding', 'jit')";
    assert_eq!(
        fetch_text(postgres.connect_options(), settings).await,
        "data_checksums=on fsync=on full_page_writes=on jit=off listen_addresses= server_encoding=UTF8 \
         synchronous_commit=on"
    );
    postgres.stop().await.unwrap();
}

#[tokio::test]
async fn connections_without_the_password_are_refused() {
    let dir = data_dir();
    let postgres = PrivatePostgres::start(dir.path()).await.unwrap();
    let guess = postgres.connect_options().clone().password("guess");
    let refusal = PgConnection::connect_with(&guess).await.unwrap_err();
    assert_eq!(refusal.as_database_error().unwrap().code().as_deref(), Some("28P01"));
    postgres.stop().await.unwrap();
}

#[tokio::test]
async fn committed_data_survives_a_killed_server() {
    let dir = data_dir();
    let mut postgres = PrivatePostgres::start(dir.path()).await.unwrap();
    write_note(&postgres, "committed").await;
    // Its process is busy with a statement, so it outlives the server and keeps the shared memory.
    let mut busy = PgConnection::connect_with(postgres.connect_options()).await.unwrap();
    let busy = tokio::spawn(async move { sqlx::raw_sql(BUSY_FOR_TWO_SECONDS).execute(&mut busy).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    kill_process(live_pid(dir.path()).unwrap(), Signal::KILL).unwrap();
    postgres.ended().await;
    drop(postgres);

    let postgres = PrivatePostgres::start(dir.path()).await.unwrap();
    assert_eq!(notes(postgres.connect_options()).await, "committed");
    postgres.stop().await.unwrap();
    busy.await.unwrap().ok();
}

#[tokio::test]
async fn a_reused_process_id_is_not_mistaken_for_a_running_server() {
    let dir = data_dir();
    let postgres = PrivatePostgres::start(dir.path()).await.unwrap();
    write_note(&postgres, "committed").await;
    let dead = live_pid(dir.path()).unwrap();
    kill_process(dead, Signal::KILL).unwrap();
    drop(postgres);

    // It runs as the server's user, because Postgres itself recognizes that other users' processes are not its own.
    let directory = cluster::directory(dir.path());
    let user = server_user::choose(&directory).unwrap();
    let mut stranger = server_user::command(Path::new("/bin/sleep"), user.as_ref(), Path::new("/"))
        .arg("60")
        .spawn()
        .unwrap();
    for name in ["postmaster.pid", ".s.PGSQL.5432.lock"] {
        let file = directory.join(name);
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replacen(&dead.to_string(), &stranger.id().to_string(), 1)).unwrap();
    }
    assert!(find_running(dir.path()).unwrap().is_none());

    let postgres = PrivatePostgres::start(dir.path()).await.unwrap();
    assert_eq!(notes(postgres.connect_options()).await, "committed");
    assert!(stranger.try_wait().unwrap().is_none(), "the stranger was left alone");
    postgres.stop().await.unwrap();
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[tokio::test]
async fn a_server_that_lost_its_host_is_replaced() {
    let dir = data_dir();
    let PrivatePostgres { connect_options, postmaster, _lock: lock } =
        PrivatePostgres::start(dir.path()).await.unwrap();
    execute(&connect_options, "CREATE TABLE notes AS SELECT 'kept' AS note").await;
    let orphan = live_pid(dir.path()).unwrap();
    // As on systems where the kernel does not stop the server: its process is running, and no one holds the lock.
    mem::forget(postmaster);
    drop(lock);

    let postgres = PrivatePostgres::start(dir.path()).await.unwrap();
    assert_ne!(live_pid(dir.path()), Some(orphan));
    assert_eq!(notes(postgres.connect_options()).await, "kept");
    postgres.stop().await.unwrap();
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_server_stops_when_its_host_is_killed() {
    let dir = data_dir();
    let mut owner = spawn_owner(dir.path());
    wait_until("the owner's Postgres runs", || find_running(dir.path()).is_ok_and(|found| found.is_some()));
    owner.kill().unwrap();
    owner.wait().unwrap();
    wait_until("its Postgres has exited", || live_pid(dir.path()).is_none());

    let postgres = PrivatePostgres::start(dir.path()).await.unwrap();
    postgres.stop().await.unwrap();
}

#[tokio::test]
async fn a_second_host_learns_which_process_uses_the_directory() {
    let dir = data_dir();
    let postgres = PrivatePostgres::start(dir.path()).await.unwrap();
    let Err(refusal) = PrivatePostgres::start(dir.path()).await else { panic!("two hosts on one cluster") };
    assert!(refusal.to_string().starts_with(&format!("another host (process {})", std::process::id())));
    write_note(&postgres, "still there").await;
    postgres.stop().await.unwrap();
}

#[tokio::test]
async fn another_process_connects_to_a_running_one() {
    let dir = data_dir();
    assert!(find_running(dir.path()).unwrap().is_none());
    let postgres = PrivatePostgres::start(dir.path()).await.unwrap();
    write_note(&postgres, "seen").await;
    let found = find_running(dir.path()).unwrap().unwrap();
    assert_eq!(notes(&found).await, "seen");
    postgres.stop().await.unwrap();
}

#[tokio::test]
async fn a_long_data_directory_path_uses_another_socket_directory() {
    let dir = data_dir();
    let deep = dir.path().join("d".repeat(100));
    let postgres = PrivatePostgres::start(&deep).await.unwrap();
    write_note(&postgres, "deep").await;
    assert_eq!(notes(&find_running(&deep).unwrap().unwrap()).await, "deep");
    let socket_directory = postgres.connect_options().get_socket().unwrap().clone();
    assert!(!socket_directory.starts_with(dir.path()));
    postgres.stop().await.unwrap();
    assert!(!socket_directory.exists());
}

#[tokio::test]
async fn a_cluster_of_another_version_is_left_alone() {
    let dir = data_dir();
    let directory = cluster::directory(dir.path());
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("PG_VERSION"), "9\n").unwrap();
    let Err(refusal) = PrivatePostgres::start(dir.path()).await else { panic!("started on version 9") };
    assert!(refusal.to_string().contains("was created by Postgres 9, but "), "{refusal}");
}

#[tokio::test]
async fn a_failed_start_reports_the_reason() {
    let dir = data_dir();
    PrivatePostgres::start(dir.path()).await.unwrap().stop().await.unwrap();
    let settings = cluster::directory(dir.path()).join("postgresql.auto.conf");
    fs::write(&settings, "work_mem = 'plenty'\n").unwrap();
    let Err(refusal) = PrivatePostgres::start(dir.path()).await else { panic!("started anyway") };
    assert!(refusal.to_string().contains("invalid value for parameter \"work_mem\""), "{refusal}");
}

#[tokio::test]
async fn an_inaccessible_data_directory_is_reported() {
    use std::os::unix::fs::PermissionsExt;

    if !server_user::is_root() {
        return; // For other users, the server runs as the user itself.
    }
    let dir = data_dir();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let Err(refusal) = PrivatePostgres::start(&dir.path().join("data")).await else { panic!("reached") };
    let expected = format!("who may not pass through `{}`", dir.path().canonicalize().unwrap().display());
    assert!(refusal.to_string().contains(&expected), "{refusal}");
}

/// Not a test by itself: another test runs this in a separate process and kills it as the host.
#[tokio::test]
async fn owner_of_a_postgres() {
    let Some(data_dir) = env::var_os(OWNED_DATA_DIR) else { return };
    let _postgres = PrivatePostgres::start(Path::new(&data_dir)).await.unwrap();
    std::future::pending::<()>().await;
}

#[cfg(target_os = "linux")]
fn spawn_owner(data_dir: &Path) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "private_postgres::tests::owner_of_a_postgres"])
        .env(OWNED_DATA_DIR, data_dir)
        .process_group(0)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}
