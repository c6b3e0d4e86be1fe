//! How many rows statements read, as counted by Postgres: no more than they need, whatever else is stored, with and
//! without statistics.

use sqlx::{Connection, PgConnection};
use syncline_crypto::RecordKeys;
use syncline_store::audit_log;
use syncline_store::connections::{self, ConnectionFilter, ConnectionPosition, ErrorFilter, Page};
use syncline_store::inbound_webhooks::log;
use syncline_store::outbound_webhooks::log as outbound;
use syncline_store::pages::PageLimit;
use syncline_store::records::{self, ActionSet};
use syncline_store::runs::{self, RunPosition, RunState, Scope};
use syncline_store::schedules::{
    self, ListedState, NewVariant, ScheduleFilter, ScheduleScope, Target, TriggerOptions,
};
use syncline_store::streams::StreamKey;
use syncline_store::{
    Databases, Store, attention, dead_letters, deployments, integrations, queues, run_statistics, streams,
};
use syncline_types::audit_log::AuditAction;
use syncline_types::functions::FunctionKind;
use syncline_types::ids::{ConnectionId, ConnectionPk, EnvironmentPk, FunctionName, IntegrationPk, Variant};

use crate::support::{RECORD_TABLES, TestDatabase, eventually};

const CONNECTIONS: i64 = 5_000;
/// Rows that a statement about one connection may read.
const FEW: i64 = 100;

/// An integration with many connections, each with two syncs. The statements are about one of the connections.
struct Crowd {
    store: Store,
    environment: EnvironmentPk,
    integration: IntegrationPk,
    connection: ConnectionPk,
    db: TestDatabase,
}

impl Crowd {
    async fn gather() -> Self {
        let db = TestDatabase::create().await;
        let store = open(&db).await;
        db.execute(&format!(
            "INSERT INTO environments (name) VALUES ('crowd');
             INSERT INTO data_key_versions (environment_pk, version, wrapped_key, is_active)
             SELECT pk, 1, '', true FROM environments;
             INSERT INTO integrations (id, environment_pk, unique_key, provider)
             SELECT gen_random_uuid(), pk, 'crowd', 'acme' FROM environments;
             INSERT INTO connections (id, environment_pk, integration_pk, connection_id, sealed_credentials)
             SELECT gen_random_uuid(), environment_pk, pk, 'customer-' || number, ''
             FROM integrations, generate_series(1, {CONNECTIONS}) AS number;
             INSERT INTO schedules (environment_pk, integration_pk, connection_pk, sync_name, variant, state, due_at,
                                    due_reason)
             SELECT environment_pk, integration_pk, pk, sync_name, 'base', 'running', now() + interval '1 hour',
                    'schedule'
             FROM connections, unnest(ARRAY['contacts', 'deals']) AS sync_name"
        ))
        .await;
        let pk = async |of: &str| db.number(&format!("SELECT pk FROM {of}")).await;
        let environment = EnvironmentPk(pk("environments").await);
        let integration = IntegrationPk(pk("integrations").await);
        let connection = ConnectionPk(pk("connections WHERE connection_id = 'customer-2500'").await);
        Self { store, environment, integration, connection, db }
    }

    fn target(&self) -> Target {
        Target { whose: ScheduleScope::Connection(self.connection), syncs: None }
    }

    /// Checks that `statements` read at most `most` rows, without and with table statistics.
    #[track_caller]
    fn assert_reads<T>(
        &self,
        what: &str,
        most: i64,
        mut statements: impl AsyncFnMut(&mut PgConnection) -> sqlx::Result<T>,
    ) -> impl Future<Output = T> {
        let caller = std::panic::Location::caller();
        async move {
            let mut last = None;
            for statistics in ["SELECT", "ANALYZE"] {
                self.db.execute(statistics).await;
                let mut tx = self.store.begin().await.expect("the database answers");
                let before = rows_read(&mut tx).await;
                last = Some(statements(&mut tx).await.expect("the statement is executed"));
                let read = rows_read(&mut tx).await - before;
                assert!(read <= most, "{caller}: {what} reads {read} rows, {statistics}");
            }
            last.expect("it was executed twice")
        }
    }
}

async fn open(db: &TestDatabase) -> Store {
    let databases = Databases { control: db.url().parse().expect("it is a URL"), records: None };
    Store::open(databases, 4).await.expect("it can be opened")
}

/// Number of table rows and index entries that the transaction has read, without those of the system catalog.
async fn rows_read(conn: &mut PgConnection) -> i64 {
    let sql = "SELECT sum(pg_stat_get_xact_tuples_returned(oid))::bigint FROM pg_class
               WHERE relkind IN ('r', 'i') AND relnamespace = 'public'::regnamespace";
    sqlx::query_scalar(sql).fetch_one(conn).await.expect("the query gives a number")
}

fn page_limit(rows: i64) -> PageLimit {
    PageLimit { rows, bytes: usize::MAX }
}

fn sync() -> FunctionName {
    "contacts".parse().expect("it is a name")
}

#[tokio::test]
async fn commands_for_one_connection_read_only_its_schedules() {
    let crowd = Crowd::gather().await;
    let target = crowd.target();
    let reset = TriggerOptions { reset: true, empty_cache: false };
    crowd.assert_reads("a trigger", FEW, async |conn| schedules::trigger(conn, &target, reset).await).await;
    crowd.assert_reads("a start", FEW, async |conn| schedules::start(conn, &target).await).await;
    crowd.assert_reads("a pause", FEW, async |conn| schedules::pause(conn, &target).await).await;
    let statuses =
        crowd.assert_reads("a status", FEW, async |conn| schedules::list_status(conn, &target).await).await;
    assert_eq!(statuses.len(), 2);

    let variant: Variant = "another".parse().expect("it is a name");
    let new = NewVariant {
        connection: crowd.connection,
        sync: &sync(),
        variant: &variant,
        auto_start: true,
        most: 100,
    };
    crowd
        .assert_reads("a frequency", FEW, async |conn| {
            let now = schedules::now(conn).await?;
            let base = Variant::base();
            schedules::set_frequency(conn, crowd.connection, &sync(), &base, Some("every hour"), now).await
        })
        .await;
    crowd
        .assert_reads("a variant", FEW, async |conn| {
            schedules::create_variant(conn, &new).await?;
            schedules::retire_variant(conn, crowd.connection, &sync(), &variant).await
        })
        .await;
}

#[tokio::test]
async fn creating_a_connection_reads_no_other_schedules() {
    let crowd = Crowd::gather().await;
    let contacts = "sync_name = 'contacts'";
    crowd
        .db
        .execute(&format!("DELETE FROM schedules WHERE connection_pk = {} AND {contacts}", crowd.connection))
        .await;
    crowd
        .assert_reads("a schedule", FEW, async |conn| {
            schedules::create_missing_of_connection(conn, crowd.connection, &sync(), true).await
        })
        .await;
    let mut conn = crowd.store.connect().await.expect("the database answers");
    schedules::create_missing_of_connection(&mut conn, crowd.connection, &sync(), true)
        .await
        .expect("it is made");
    schedules::create_missing_of_connection(&mut conn, crowd.connection, &sync(), true)
        .await
        .expect("it exists");
    let made = crowd.db.number(&format!("SELECT count(*) FROM schedules WHERE {contacts}")).await;
    assert_eq!(made, CONNECTIONS, "every connection has exactly one schedule");
}

#[tokio::test]
async fn queue_statistics_read_only_due_schedules() {
    let crowd = Crowd::gather().await;
    let idle = crowd.assert_reads("a statistics query", FEW, queues::look).await;
    assert_eq!((idle.schedules_due, idle.lateness_seconds), (0, 0.0));

    crowd
        .db
        .execute(&format!(
            "INSERT INTO integrations (id, environment_pk, unique_key, provider)
             SELECT gen_random_uuid(), pk, 'another', 'acme' FROM environments;
             -- Of three due schedules, one belongs to another integration, and one waits for a permit.
             UPDATE schedules SET due_at = now() - interval '1 minute' WHERE connection_pk = {pk} AND sync_name = 'deals';
             UPDATE schedules SET due_at = now() - interval '3 minutes', awaits_permit = true
             WHERE connection_pk = {pk} AND sync_name = 'contacts';
             UPDATE schedules SET due_at = now() - interval '2 minutes',
                 integration_pk = (SELECT pk FROM integrations WHERE unique_key = 'another')
             WHERE connection_pk = {pk} + 1 AND sync_name = 'deals'",
            pk = crowd.connection
        ))
        .await;
    let busy = crowd.assert_reads("a statistics query", FEW, queues::look).await;
    assert_eq!(busy.schedules_due, 3);
    assert!((180.0..240.0).contains(&busy.lateness_seconds), "{}", busy.lateness_seconds);

    crowd.db.execute("UPDATE schedules SET due_at = now() - interval '1 hour'").await;
    crowd
        .db
        .execute(
            "INSERT INTO schedules (environment_pk, integration_pk, connection_pk, sync_name, variant, state,
                                             due_at, due_reason)
                      SELECT environment_pk, integration_pk, pk, 'tasks', 'base', 'running', now(), 'schedule'
                      FROM connections",
        )
        .await;
    let full = crowd.assert_reads("a statistics query", 10_000 + FEW, queues::look).await;
    assert_eq!(full.schedules_due, 10_000, "the count is capped");
}

#[tokio::test]
async fn listing_failed_runs_reads_no_successful_runs() {
    let crowd = Crowd::gather().await;
    crowd
        .db
        .execute(&format!(
            "INSERT INTO runs (id, environment_pk, integration_pk, connection_pk, kind, function_name, variant, trigger,
                               attempt, owner, state, started_at)
             SELECT gen_random_uuid(), environment_pk, integration_pk, c.pk, 'sync', 'contacts', 'base', 'schedule', 1,
                    gen_random_uuid(), CASE WHEN c.pk = {} AND number = 1 THEN 'error' ELSE 'success' END,
                    now() - number * interval '1 minute'
             FROM connections c, generate_series(1, 4) AS number",
            crowd.connection
        ))
        .await;
    let list = async |scope: Scope, states: &[RunState]| {
        let filter = runs::Filter {
            scope,
            states: states.to_vec(),
            kind: None,
            function: None,
            variant: None,
            trigger: None,
            started_after: None,
            started_before: None,
            behind: None,
        };
        crowd
            .assert_reads("a list", FEW, async |conn| runs::list(conn, crowd.environment, &filter, 10).await)
            .await
    };
    let scopes =
        [Scope::Environment, Scope::Integration(crowd.integration), Scope::Connection(crowd.connection)];
    for scope in scopes {
        let failed = list(scope, &[RunState::Error]).await;
        assert_eq!(failed.len(), 1, "{scope:?}");
        let all = list(scope, RunState::ALL).await;
        assert!(all.is_sorted_by_key(|run| std::cmp::Reverse((run.started_at, run.id))), "{scope:?}");
        assert_eq!(all.len(), if matches!(scope, Scope::Connection(_)) { 4 } else { 10 }, "{scope:?}");
    }
}

#[tokio::test]
async fn a_page_of_schedules_reads_no_others() {
    let crowd = Crowd::gather().await;
    crowd
        .db
        .execute(&format!(
            "UPDATE schedules SET state = 'paused' WHERE connection_pk = {pk} + 1;
             UPDATE schedules SET failures = 1 WHERE connection_pk = {pk} AND sync_name = 'deals';
             UPDATE schedules SET run_id = gen_random_uuid() WHERE connection_pk = {pk} AND sync_name = 'contacts';
             INSERT INTO integrations (id, environment_pk, unique_key, provider)
             SELECT gen_random_uuid(), pk, 'newer', 'acme' FROM environments;
             INSERT INTO connections (id, environment_pk, integration_pk, connection_id, sealed_credentials)
             SELECT gen_random_uuid(), environment_pk, pk, 'customer-2500', '' FROM integrations WHERE unique_key = 'newer';
             INSERT INTO schedules (environment_pk, integration_pk, connection_pk, sync_name, variant, state, due_reason)
             SELECT environment_pk, integration_pk, max(pk), 'contacts', 'base', 'running', 'schedule'
             FROM connections GROUP BY environment_pk, integration_pk
             ORDER BY integration_pk DESC LIMIT 1",
            pk = crowd.connection
        ))
        .await;
    let list = async |filter: &ScheduleFilter| {
        crowd
            .assert_reads("a list", FEW, async |conn| {
                schedules::list(conn, crowd.environment, filter, 10).await
            })
            .await
    };
    let first = list(&ScheduleFilter::default()).await;
    assert_eq!(first[0].integration.as_str(), "newer", "the newest integration is first");
    assert_eq!(first[1].status.connection_id.as_str(), "customer-5000");
    assert_eq!(first.len(), 10);

    let behind = Some(first[9].position);
    let second = list(&ScheduleFilter { behind, ..ScheduleFilter::default() }).await;
    let positions: Vec<_> = first.iter().chain(&second).map(|listed| listed.position.schedule).collect();
    assert!(positions[1..].is_sorted_by(|one, other| one > other), "{positions:?}");

    let integration = Some(crowd.integration);
    let of_integration = list(&ScheduleFilter { integration, ..ScheduleFilter::default() }).await;
    assert_eq!(of_integration[0].position, first[1].position);
    let of_sync = ScheduleFilter { sync: Some(sync()), integration, ..ScheduleFilter::default() };
    let mut conn = crowd.store.connect().await.expect("the database answers");
    let contacts = schedules::list(&mut conn, crowd.environment, &of_sync, 10).await.expect("it is listed");
    assert!(contacts.len() == 10 && contacts.iter().all(|listed| listed.status.sync == sync()));
    drop(conn);
    for (state, expected) in [
        (ListedState::Running, 1),
        (ListedState::Paused, 2),
        (ListedState::Failing, 1),
        (ListedState::Held, 0),
    ] {
        for integration in [None, Some(crowd.integration)] {
            let filter = ScheduleFilter { integration, state: Some(state), ..ScheduleFilter::default() };
            assert_eq!(list(&filter).await.len(), expected, "{state:?}");
        }
    }
    let connection: ConnectionId = "customer-2500".parse().expect("it is an id");
    let of_connection = ScheduleFilter { connection: Some(connection), ..ScheduleFilter::default() };
    assert_eq!(list(&of_connection).await.len(), 3, "two integrations have a connection with this id");
    let failing = ScheduleFilter { state: Some(ListedState::Failing), ..of_connection };
    assert_eq!(list(&failing).await.len(), 1);
}

#[tokio::test]
async fn filters_by_last_action_read_only_matching_records() {
    let crowd = Crowd::gather().await;
    let stream = StreamKey { connection: crowd.connection, number: 1 };
    crowd
        .db
        .execute(&format!(
            "INSERT INTO records (connection_pk, stream_no, last_action, position, first_seen_at, last_modified_at,
                                  payload_hash, external_id, payload)
             SELECT {}, 1, CASE position WHEN 2000 THEN 1 WHEN 3000 THEN 2 WHEN 4000 THEN 1 ELSE 0 END, position, now(),
                    now(), gen_random_uuid(), position, '{{}}'
             FROM generate_series(1, 5000) AS position",
            crowd.connection
        ))
        .await;
    let keys =
        RecordKeys::new([]).expect("none is wrong").of_stream(stream.connection.0, stream.number, false);
    let read = async |actions: ActionSet, after: i64, limit: i64| {
        let filter = records::Filter { after, modified_since: None, actions };
        let page = crowd
            .assert_reads("a page", FEW, async |conn| {
                records::page(conn, stream, &keys, &filter, page_limit(limit)).await
            })
            .await;
        page.rows.into_iter().map(|record| record.position).collect::<Vec<_>>()
    };
    let updated = ActionSet { updated: true, ..ActionSet::default() };
    let deleted = ActionSet { deleted: true, ..ActionSet::default() };
    let either = ActionSet { updated: true, deleted: true, added: false };
    assert_eq!(read(deleted, 0, 10).await, [3000]);
    assert_eq!(read(deleted, 3000, 10).await, [0; 0]);
    assert_eq!(read(updated, 0, 10).await, [2000, 4000]);
    assert_eq!(read(either, 0, 10).await, [2000, 3000, 4000]);
    assert_eq!(read(either, 0, 2).await, [2000, 3000]);
    assert_eq!(read(either, 2000, 2).await, [3000, 4000]);
}

#[tokio::test]
async fn listing_dead_letters_of_a_connection_reads_no_others() {
    let crowd = Crowd::gather().await;
    crowd
        .db
        .execute(
            "INSERT INTO streams (connection_pk, stream_no, model, variant) SELECT pk, 1, 'Item', 'base' FROM connections;
             INSERT INTO dead_letters (connection_pk, stream_no, letter_key, environment_pk, integration_pk, function_name,
                                       run_id, problems, payload, position, first_seen_at, last_seen_at)
             SELECT pk, 1, 'id:1', environment_pk, integration_pk, 'contacts', '', '[]', '{}', 0, now(), now()
             FROM connections ORDER BY pk DESC",
        )
        .await;
    let filter =
        dead_letters::Filter { connection: Some(crowd.connection), ..dead_letters::Filter::default() };
    let listed = crowd
        .assert_reads("a list", FEW, async |conn| {
            dead_letters::list(conn, crowd.environment, &filter, page_limit(10)).await
        })
        .await;
    assert_eq!(listed.rows.len(), 1);
    let found = crowd
        .assert_reads("a dead letter", FEW, async |conn| {
            dead_letters::find(conn, crowd.environment, listed.rows[0].id).await
        })
        .await;
    assert_eq!(found.map(|letter| letter.number), Some(listed.rows[0].number));
}

#[tokio::test]
async fn listing_jobs_of_a_webhook_reads_no_others() {
    let crowd = Crowd::gather().await;
    crowd
        .db
        .execute(
            "INSERT INTO function_jobs (id, environment_pk, integration_pk, connection_pk, integration_key, connection_id,
                                        kind, function_name, state, is_async, is_ordered, max_retries, webhook_id)
             SELECT gen_random_uuid(), environment_pk, integration_pk, pk, 'crowd', connection_id, 'webhook', 'push',
                    'success', true, false, 0, md5(connection_id)::uuid
             FROM connections",
        )
        .await;
    let webhook =
        crowd.db.texts("SELECT md5('customer-2500')::uuid::text").await[0].parse().expect("it is an id");
    let jobs = crowd.assert_reads("a list", FEW, async |conn| log::list_jobs(conn, webhook).await).await;
    assert_eq!(jobs.len(), 1);
}

#[tokio::test]
async fn deployments_and_deletions_read_only_functions_of_their_environment() {
    let crowd = Crowd::gather().await;
    // Bundles of other environments, superseded versions, and bundles for other integrations.
    crowd
        .db
        .execute(
            "INSERT INTO components (digest, wasm) VALUES ('', '');
             INSERT INTO environments (name) SELECT 'other-' || number FROM generate_series(1, 300) AS number;
             INSERT INTO integrations (id, environment_pk, unique_key, provider)
             SELECT gen_random_uuid(), pk, 'crowd', 'acme' FROM environments WHERE name <> 'crowd';
             INSERT INTO integrations (id, environment_pk, unique_key, provider)
             SELECT gen_random_uuid(), pk, 'another', 'acme' FROM environments WHERE name = 'crowd';
             INSERT INTO deployments (environment_pk, id, bundle_name, version, digest, state, config, deployed_by)
             SELECT pk, gen_random_uuid(), bundle, version, '', CASE version WHEN 9 THEN 'active' ELSE 'superseded' END, '{}', ''
             FROM environments, unnest(ARRAY['one', 'two']) AS bundle, generate_series(1, 9) AS version;
             INSERT INTO functions (deployment_pk, integration_pk, kind, name, spec, component_digest)
             SELECT d.pk, i.pk, kind, d.bundle_name, '{}', ''
             FROM deployments d JOIN integrations i ON i.environment_pk = d.environment_pk,
                  unnest(ARRAY['sync', 'action', 'lifecycle']) AS kind",
        )
        .await;
    let environment = crowd.environment;
    let one = crowd
        .assert_reads("a bundle", FEW, async |conn| deployments::find_active(conn, environment, "one").await)
        .await
        .expect("it is active");
    let own = crowd
        .assert_reads("its functions", FEW, async |conn| deployments::list_functions(conn, one.pk).await)
        .await;
    assert_eq!(own.len(), 6);
    let others = crowd
        .assert_reads("functions of other bundles", FEW, async |conn| {
            let integrations = [crowd.integration];
            deployments::list_functions_of_other_bundles(conn, environment, "one", &integrations).await
        })
        .await;
    let others: Vec<_> =
        others.iter().map(|(function, bundle)| (function.kind.as_str(), &**bundle)).collect();
    assert_eq!(others, [("sync", "two"), ("action", "two"), ("lifecycle", "two")]);
    let lifecycle = crowd
        .assert_reads("lifecycle functions", FEW, async |conn| {
            deployments::list_active_lifecycle(conn, environment).await
        })
        .await;
    assert_eq!(lifecycle.len(), 4);
}

#[tokio::test]
async fn deleting_an_integration_reads_no_other_connections() {
    let crowd = Crowd::gather().await;
    crowd
        .db
        .execute(
            "INSERT INTO integrations (id, environment_pk, unique_key, provider)
             SELECT gen_random_uuid(), pk, 'unused', 'acme' FROM environments",
        )
        .await;
    let unused = "unused".parse().expect("it is a key");
    let connections = crowd
        .assert_reads("a deletion", FEW, async |conn| {
            integrations::delete(conn, crowd.environment, &unused).await
        })
        .await;
    assert_eq!(connections, Some(Vec::new()));
}

#[tokio::test]
async fn every_table_of_the_records_database_is_keyed_by_connection() {
    let db = TestDatabase::create().await;
    let _store = open(&db).await;
    let half = RECORD_TABLES.map(|table| format!("'{table}'")).join(", ");
    let keyed = "a.attname = 'connection_pk'";
    let begins = db
        .number(&format!(
            "SELECT count(*) FROM pg_index i JOIN pg_class t ON t.oid = i.indrelid
             JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = i.indkey[0]
             WHERE i.indisprimary AND {keyed} AND t.relname IN ({half})"
        ))
        .await;
    assert_eq!(begins, RECORD_TABLES.len() as i64, "every primary key begins with the connection");
    let unique_elsewhere = db
        .texts(&format!(
            "SELECT i.indexrelid::regclass::text FROM pg_index i JOIN pg_class t ON t.oid = i.indrelid
             WHERE i.indisunique AND t.relname IN ({half}) AND NOT EXISTS (
                 SELECT FROM pg_attribute a WHERE a.attrelid = t.oid AND a.attnum = ANY(i.indkey) AND {keyed}
             )"
        ))
        .await;
    assert!(unique_elsewhere.is_empty(), "unique over connections: {unique_elsewhere:?}");
    let references = db
        .texts(&format!(
            "SELECT conname::text FROM pg_constraint c JOIN pg_class t ON t.oid IN (c.conrelid, c.confrelid)
             WHERE c.contype = 'f' AND t.relname IN ({half})"
        ))
        .await;
    assert!(references.is_empty(), "tables with foreign keys: {references:?}");
}

#[tokio::test]
async fn a_sync_locks_its_streams_in_the_same_order_as_other_writers() {
    let db = TestDatabase::create().await;
    let store = open(&db).await;
    db.execute(
        "INSERT INTO streams (connection_pk, stream_no, model, variant, sync_name)
         VALUES (1, 1, 'Zebra', 'base', 'contacts'), (1, 2, 'Yak', 'base', NULL), (1, 3, 'Ant', 'base', NULL)",
    )
    .await;
    let lock = async |conn: &mut PgConnection, number: i32| {
        let sql = "SELECT stream_no FROM streams WHERE stream_no = $1 FOR NO KEY UPDATE";
        sqlx::query(sql).bind(number).execute(conn).await
    };
    for held in [1, 2] {
        db.execute("UPDATE streams SET sync_name = NULL WHERE stream_no > 1").await;
        let mut writer = db.connect().await;
        let mut writing = writer.begin().await.expect("the database answers");
        lock(&mut writing, held).await.expect("the row is not locked");
        let models = ["Ant", "Yak"].map(str::to_owned);
        let zebras = [("Zebra".parse().expect("it is a name"), Variant::base())];
        let assigning = async {
            let mut tx = store.begin_records().await?;
            streams::assign(&mut tx, ConnectionPk(1), &models, &Variant::base(), &sync()).await?;
            streams::lock(&mut tx, ConnectionPk(1), &zebras, Some(&sync())).await?;
            tx.commit().await
        };
        let going_on = async {
            let waiting = "SELECT count(*) FROM pg_stat_activity
                           WHERE datname = current_database() AND wait_event_type = 'Lock'";
            eventually("the sync waits", async || (db.number(waiting).await == 1).then_some(())).await;
            lock(&mut writing, 3).await?;
            writing.commit().await
        };
        let (assigned, written) = tokio::join!(assigning, going_on);
        assigned.expect("the sync is not in a deadlock");
        written.expect("the writer is not in a deadlock");
    }
    assert_eq!(db.number("SELECT count(*) FROM streams WHERE sync_name = 'contacts'").await, 3);
}

#[tokio::test]
async fn a_page_of_the_audit_log_reads_only_its_entries() {
    let crowd = Crowd::gather().await;
    // One in a thousand entries is of another environment, author, action and target.
    crowd
        .db
        .execute(
            "INSERT INTO audit_log (at, environment_name, actor_kind, actor_id, action, target_kind, target)
             SELECT now() - number * interval '1 minute', CASE WHEN rare THEN 'rare' ELSE 'crowd' END, 'api_key',
                    CASE WHEN rare THEN 'rare' ELSE 'key' END,
                    CASE WHEN rare THEN 'run.approved' ELSE 'credentials.read' END, 'connection',
                    CASE WHEN rare THEN 'crowd/rare' ELSE 'crowd/' || number END
             FROM generate_series(1, 20000) AS number, LATERAL (SELECT number % 1000 = 0) AS of (rare)",
        )
        .await;
    let (rare, key) = (Some("rare".to_owned()), Some("key".to_owned()));
    let middle = chrono::Utc::now() - chrono::TimeDelta::minutes(10_000);
    let filter = audit_log::Filter::default;
    for (what, filter) in [
        ("everything", filter()),
        ("a rare environment", audit_log::Filter { environment: rare.clone(), ..filter() }),
        ("a rare author", audit_log::Filter { actor: rare, ..filter() }),
        ("a common author", audit_log::Filter { actor: key, ..filter() }),
        ("a rare action", audit_log::Filter { action: Some(AuditAction::RunApproved), ..filter() }),
        ("a rare target", audit_log::Filter { target: Some("crowd/rare".to_owned()), ..filter() }),
        ("an earlier time", audit_log::Filter { before: Some(middle), ..filter() }),
        ("a later time", audit_log::Filter { after: Some(middle), ..filter() }),
    ] {
        let list = async |conn: &mut PgConnection| audit_log::list(conn, &filter, 20).await;
        let found = crowd.assert_reads(what, FEW, list).await;
        assert_eq!(found.len(), 20, "{what}");
        let behind = Some(found[9].position);
        let filter = audit_log::Filter { behind, ..filter.clone() };
        let list = async |conn: &mut PgConnection| audit_log::list(conn, &filter, 10).await;
        let next = crowd.assert_reads(what, FEW, list).await;
        let ids = |entries: &[audit_log::Entry]| entries.iter().map(|entry| entry.id).collect::<Vec<_>>();
        assert_eq!(ids(&next), ids(&found[10..]), "{what}");
    }
    let kept_for = std::time::Duration::from_secs(13 * 86_400);
    let delete = async |conn: &mut PgConnection| audit_log::delete_expired(conn, kept_for, 20).await;
    assert_eq!(crowd.assert_reads("retention", FEW, delete).await, 20);
}

impl Crowd {
    /// Adds ten runs of each connection. Those of `self.connection` are of a rare function and kind.
    async fn add_runs(&self) {
        self.db
            .execute(&format!(
                "INSERT INTO runs (id, environment_pk, integration_pk, connection_pk, kind, function_name, variant,
                                   trigger, attempt, owner, state, started_at, finished_at, schedule_pk)
                 SELECT gen_random_uuid(), c.environment_pk, c.integration_pk, c.pk,
                        CASE WHEN c.pk = {pk} AND number > 3 THEN 'action' ELSE 'sync' END,
                        CASE WHEN c.pk = {pk} AND number > 3 THEN 'rare' ELSE 'contacts' END, 'base', 'schedule', 1,
                        gen_random_uuid(), 'success', now() - (c.pk + number) * interval '1 minute',
                        now() - (c.pk + number) * interval '1 minute', s.pk
                 FROM connections c JOIN schedules s ON s.connection_pk = c.pk AND s.sync_name = 'contacts',
                      generate_series(1, 10) AS number",
                pk = self.connection,
            ))
            .await;
    }

    fn all_runs(&self, scope: Scope) -> runs::Filter {
        runs::Filter {
            scope,
            states: RunState::ALL.to_vec(),
            kind: None,
            function: None,
            variant: None,
            trigger: None,
            started_after: None,
            started_before: None,
            behind: None,
        }
    }
}

#[tokio::test]
async fn lists_of_runs_by_function_kind_and_time_read_only_their_page() {
    let crowd = Crowd::gather().await;
    crowd.add_runs().await;
    let list = async |what: &str, filter: runs::Filter| {
        crowd
            .assert_reads(what, FEW, async |conn| runs::list(conn, crowd.environment, &filter, 10).await)
            .await
    };
    let environment = || crowd.all_runs(Scope::Environment);
    let rare = || Some("rare".to_owned());
    for scope in [Scope::Environment, Scope::Integration(crowd.integration)] {
        let found = list("a rare function", runs::Filter { function: rare(), ..crowd.all_runs(scope) }).await;
        assert_eq!(found.len(), 7, "{scope:?}");
        assert!(found.is_sorted_by_key(|run| std::cmp::Reverse((run.started_at, run.id))), "{scope:?}");
        let of_sync = runs::Filter { function: Some("contacts".to_owned()), ..crowd.all_runs(scope) };
        assert_eq!(list("a common function", of_sync).await.len(), 10, "{scope:?}");
    }
    let other = Scope::Integration(IntegrationPk(crowd.integration.0 - 1));
    assert_eq!(
        list("another integration", runs::Filter { function: rare(), ..crowd.all_runs(other) }).await.len(),
        0
    );
    let actions =
        list("a rare kind", runs::Filter { kind: Some(FunctionKind::Action), ..environment() }).await;
    assert_eq!(actions.len(), 7);
    let newest = list("all runs", environment()).await;
    let next = RunPosition { started_at: newest[9].started_at, id: newest[9].id };
    let behind = list("the second page", runs::Filter { behind: Some(next), ..environment() }).await;
    assert!(behind[0].started_at <= newest[9].started_at && behind.iter().all(|run| run.id != newest[9].id));
    let rare_at = actions[3].started_at;
    let between = runs::Filter {
        started_after: Some(rare_at),
        started_before: Some(rare_at + chrono::TimeDelta::minutes(1)),
        ..environment()
    };
    assert!(list("one minute", between).await.iter().any(|run| run.started_at == rare_at));
}

#[tokio::test]
async fn listing_the_runs_of_one_sync_reads_no_others() {
    let crowd = Crowd::gather().await;
    crowd.add_runs().await;
    let base = Variant::base();
    let list = async |before| {
        crowd
            .assert_reads("the runs of a sync", FEW, async |conn| {
                runs::list_of_sync(conn, crowd.connection, &sync(), &base, before, 6).await
            })
            .await
    };
    let first = list(None).await;
    let second = list(Some(first[5].started_at)).await;
    assert_eq!((first.len(), second.len()), (6, 4));
    assert!(first.iter().chain(&second).is_sorted_by_key(|run| std::cmp::Reverse(run.started_at)));
}

#[tokio::test]
async fn lists_of_connections_read_only_their_page() {
    let crowd = Crowd::gather().await;
    crowd
        .db
        .execute(
            "INSERT INTO connection_errors (environment_pk, connection_pk, type, subject, log_id, code, message)
             SELECT environment_pk, pk, kind, '', gen_random_uuid(), 'x', ''
             FROM connections, unnest(ARRAY['auth', 'sync']) AS kind WHERE connection_id LIKE '%01'",
        )
        .await;
    // A list of failing connections reads those that fail, and no others, and the error of each one on the page.
    for (errors, most) in [(None, FEW), (Some(ErrorFilter::Any), 3 * FEW + 10)] {
        let list = async |what: &str, behind: Option<ConnectionPosition>| {
            let filter = ConnectionFilter { errors, behind, ..ConnectionFilter::default() };
            let page = Page { limit: 10, offset: 0 };
            let read = async |conn: &mut PgConnection| {
                connections::list(conn, crowd.environment, &filter, page, usize::MAX).await
            };
            crowd.assert_reads(what, most, read).await.rows
        };
        let first = list("a page", None).await;
        let last = &first[9];
        let behind = ConnectionPosition { created_at: last.created_at, pk: last.pk };
        let second = list("the second page", Some(behind)).await;
        let both: Vec<_> = first.iter().chain(&second).map(|connection| connection.pk).collect();
        assert_eq!(both.len(), 20, "{errors:?}");
        assert!(both.is_sorted_by(|one, next| one > next), "newest first, {errors:?}: {both:?}");
        let fails = |connection: &connections::Connection| connection.connection_id.as_str().ends_with("01");
        assert!(errors.is_none() || first.iter().chain(&second).all(fails), "{errors:?}");
    }
}

#[tokio::test]
async fn counts_of_problems_read_at_most_a_thousand_rows_each() {
    let crowd = Crowd::gather().await;
    crowd
        .db
        .execute(
            "INSERT INTO connection_errors (environment_pk, connection_pk, type, subject, log_id, code, message)
             SELECT environment_pk, pk, 'sync', 'contacts::base', gen_random_uuid(), 'x', '' FROM connections;
             INSERT INTO outbound_webhook_deliveries (id, message_id, environment_pk, type, url, body, state)
             SELECT gen_random_uuid(), gen_random_uuid(), environment_pk, 'sync', 'http://a.test', '', 'failed'
             FROM connections",
        )
        .await;
    let problems = crowd
        .assert_reads("the counts", 3 * (attention::MOST + FEW), async |conn| {
            attention::count(conn, crowd.environment).await
        })
        .await;
    assert_eq!((problems.connections, problems.syncs, problems.deliveries), (1_000, 1_000, 1_000));
    assert_eq!(problems.held_deletions, 0);
}

#[tokio::test]
async fn an_overview_reads_no_runs() {
    let crowd = Crowd::gather().await;
    crowd.add_runs().await;
    crowd
        .db
        .execute(
            "INSERT INTO run_statistics
             SELECT i.environment_pk, hours, date_trunc('day', now()) - age * interval '1 day', i.pk, 'sync', 1, 0, 0, 0,
                    0, 0, 0, 0, '{1}', 0, '{}'
             FROM integrations i, unnest(ARRAY[1, 6, 24]) AS hours, generate_series(0, 89) AS age",
        )
        .await;
    let since = chrono::Utc::now() - chrono::TimeDelta::days(30);
    let read =
        async |conn: &mut PgConnection| run_statistics::list(conn, crowd.environment, 24, since, None).await;
    assert_eq!(crowd.assert_reads("an overview", FEW, read).await.len(), 30);
    let ended = crowd
        .assert_reads("counting", 5 * FEW, async |conn| run_statistics::take_ended(conn, FEW).await)
        .await;
    assert_eq!(ended.len(), 100);
}

#[tokio::test]
async fn listing_deployments_reads_only_those_of_the_page() {
    let crowd = Crowd::gather().await;
    crowd
        .db
        .execute(
            "INSERT INTO deployments (id, environment_pk, bundle_name, version, digest, state, config, deployed_by)
             SELECT gen_random_uuid(), pk, 'crowd', version, '', 'superseded', '{}', ''
             FROM environments, generate_series(1, 5000) AS version",
        )
        .await;
    let first = crowd
        .assert_reads("the history", FEW, async |conn| {
            deployments::list_history(conn, crowd.environment, None, None, 10).await
        })
        .await;
    assert_eq!(first[0].version, 5_000);
    let second = crowd
        .assert_reads("the second page", FEW, async |conn| {
            deployments::list_history(conn, crowd.environment, None, Some(first[9].pk), 10).await
        })
        .await;
    assert_eq!(second[0].version, 4_990);
}

#[tokio::test]
async fn lists_of_webhooks_read_only_their_page() {
    let crowd = Crowd::gather().await;
    crowd
        .db
        .execute(
            "INSERT INTO outbound_webhook_deliveries (id, message_id, environment_pk, connection_pk, type, url, body,
                                                      state)
             SELECT gen_random_uuid(), gen_random_uuid(), environment_pk, pk, 'sync', 'http://a.test', '',
                    CASE WHEN connection_id LIKE '%000' THEN 'failed' ELSE 'delivered' END
             FROM connections;
             INSERT INTO inbound_webhooks (id, environment_pk, integration_pk, headers, query, format, body, state)
             SELECT gen_random_uuid(), environment_pk, integration_pk, '{}', '', 'json', '',
                    CASE WHEN connection_id LIKE '%000' THEN 'failed' ELSE 'processed' END
             FROM connections",
        )
        .await;
    for (states, count) in [(&outbound::State::ALL[..], 10), (&[outbound::State::Failed], 5)] {
        let filter = outbound::Filter {
            states: states.to_vec(),
            kind: None,
            connection: None,
            since: None,
            before: None,
        };
        let found = crowd
            .assert_reads("deliveries", FEW, async |conn| {
                outbound::list(conn, crowd.environment, &filter, 10).await
            })
            .await;
        assert_eq!(found.len(), count, "{states:?}");
    }
    for (states, count) in [(&log::State::ALL[..], 10), (&[log::State::Failed], 5)] {
        let filter = log::Filter {
            states: states.to_vec(),
            integration: None,
            event_type: None,
            since: None,
            before: None,
        };
        let found = crowd
            .assert_reads("inbound webhooks", FEW, async |conn| {
                log::list(conn, crowd.environment, &filter, 10).await
            })
            .await;
        assert_eq!(found.len(), count, "{states:?}");
    }
}
