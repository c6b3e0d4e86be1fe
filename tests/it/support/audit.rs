//! Invariants of a database that hold whenever no work is in progress.

use super::{TestDatabase, eventually};

/// Each invariant with a query that counts the rows that violate it.
const CONTRADICTIONS: &[(&str, &str)] = &[
    (
        "the counts of a stream match its records",
        "SELECT count(*) FROM streams s CROSS JOIN LATERAL (
             SELECT count(*) AS total, count(*) FILTER (WHERE deleted_at IS NULL) AS live,
                    coalesce(max(position), 0) AS last
             FROM records r WHERE r.connection_pk = s.connection_pk AND r.stream_no = s.stream_no
         ) AS kept
         WHERE (s.total_count, s.live_count) <> (kept.total, kept.live) OR s.last_position < kept.last",
    ),
    (
        "times of records grow with their positions",
        "SELECT count(*) FROM (
             SELECT last_modified_at < lag(last_modified_at) OVER (
                 PARTITION BY connection_pk, stream_no ORDER BY position
             ) AS goes_back FROM records
         ) AS pairs WHERE goes_back",
    ),
    (
        "every record belongs to a stream",
        "SELECT count(*) FROM records r WHERE NOT EXISTS (
             SELECT FROM streams s WHERE s.connection_pk = r.connection_pk AND s.stream_no = r.stream_no
         )",
    ),
    (
        "positions seen by a full sync are deleted with it",
        "SELECT count(*) FROM seen_positions p JOIN streams s USING (connection_pk, stream_no)
         WHERE p.generation IS DISTINCT FROM s.generation AND p.generation IS DISTINCT FROM s.held_generation",
    ),
    (
        "every running sync belongs to a schedule",
        "SELECT count(*) FROM runs r WHERE kind = 'sync' AND state = 'running'
             AND NOT EXISTS (SELECT FROM schedules s WHERE s.run_id = r.id)",
    ),
    (
        "every run that has ended is counted once, or waits to be counted",
        "SELECT abs(
             (SELECT count(*) FROM runs WHERE state <> 'running') - (SELECT count(*) FROM ended_runs)
             - (SELECT coalesce(sum(succeeded + failed + cancelled + lost), 0) FROM run_statistics WHERE hours = 1)
         )::bigint",
    ),
];

/// Waits until no work is in progress, and then checks all invariants.
pub async fn assert_settled(db: &TestDatabase) {
    // Two queries, because the tables may be in two databases.
    let busy = "SELECT (SELECT count(*) FROM schedules WHERE run_id IS NOT NULL OR due_at <= now())
                     + (SELECT count(*) FROM function_jobs WHERE state IN ('queued', 'running'))";
    let closed = "SELECT count(*) FROM streams JOIN closed_connections USING (connection_pk)";
    eventually("no work is in progress", async || {
        (db.number(busy).await == 0 && db.number(closed).await == 0).then_some(())
    })
    .await;
    for (rule, contradictions) in CONTRADICTIONS {
        assert_eq!(db.number(contradictions).await, 0, "violated invariant: {rule}");
    }
}
