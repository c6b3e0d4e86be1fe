-- Views for people and programs that read the database directly. Their names and columns are public and documented in
-- docs/reference/sql-views.md. A role that is granted the views can read nothing else, because views have the rights of
-- their owner. They contain no sealed values, and no settings, metadata or configuration of connections, which may
-- contain secrets.
--
-- The schema must not have the name of a database role: Postgres searches a schema with the name of the role first, and
-- later migrations would create their tables in it.
CREATE SCHEMA syncline_views;
COMMENT ON SCHEMA syncline_views IS 'Syncline: views for reading the database directly, see docs/reference/sql-views.md';

-- Without connections that are still being validated.
CREATE VIEW syncline_views.connections AS
SELECT e.name AS environment, i.unique_key AS integration, i.provider, c.connection_id, c.tags, c.created_at,
       c.updated_at
FROM connections c
JOIN integrations i ON i.pk = c.integration_pk
JOIN environments e ON e.pk = c.environment_pk
WHERE c.validating_since IS NULL;

-- Streams and records of deleted connections are left out; they are removed in the background. The names of
-- environments, integrations and connections are in the control database, so they are null in a records database.
CREATE VIEW syncline_views.streams AS
SELECT e.name AS environment, i.unique_key AS integration, c.connection_id, s.connection_pk AS connection_number,
       s.stream_no AS stream_number,
       s.model, s.variant, s.last_position, nullif(s.last_modified_at, '-infinity') AS last_modified_at,
       s.live_count AS live_records, s.total_count AS kept_records
FROM streams s
LEFT JOIN connections c ON c.pk = s.connection_pk
LEFT JOIN integrations i ON i.pk = c.integration_pk
LEFT JOIN environments e ON e.pk = c.environment_pk
WHERE NOT EXISTS (SELECT FROM closed_connections closed WHERE closed.connection_pk = s.connection_pk);

CREATE VIEW syncline_views.records AS
SELECT e.name AS environment, i.unique_key AS integration, c.connection_id, s.connection_pk AS connection_number,
       s.stream_no AS stream_number,
       s.model, s.variant, r.external_id AS id, r.payload,
       CASE r.last_action WHEN 0 THEN 'ADDED' WHEN 1 THEN 'UPDATED' ELSE 'DELETED' END AS last_action,
       r.position, r.first_seen_at, r.last_modified_at, r.deleted_at, r.pruned_at
FROM records r
JOIN streams s ON s.connection_pk = r.connection_pk AND s.stream_no = r.stream_no
LEFT JOIN connections c ON c.pk = s.connection_pk
LEFT JOIN integrations i ON i.pk = c.integration_pk
LEFT JOIN environments e ON e.pk = c.environment_pk
WHERE NOT EXISTS (SELECT FROM closed_connections closed WHERE closed.connection_pk = s.connection_pk);

CREATE VIEW syncline_views.syncs AS
SELECT e.name AS environment, i.unique_key AS integration, c.connection_id, s.sync_name AS sync, s.variant,
       s.state = 'paused' AS is_paused, s.run_id IS NOT NULL AS is_running, s.frequency_override, s.next_run_at,
       s.failures AS failures_in_a_row, latest.state AS last_run_state, latest.started_at AS last_run_started_at,
       latest.finished_at AS last_run_finished_at, latest.error_code AS last_run_error_code,
       latest.counts AS last_run_counts,
       (
           SELECT max(finished_at) FROM runs WHERE schedule_pk = s.pk AND state = 'success'
       ) AS last_success_at
FROM schedules s
JOIN connections c ON c.pk = s.connection_pk
JOIN integrations i ON i.pk = s.integration_pk
JOIN environments e ON e.pk = s.environment_pk
LEFT JOIN LATERAL (
    SELECT state, started_at, finished_at, error_code, counts FROM runs
    WHERE schedule_pk = s.pk AND state IN ('success', 'error')
    ORDER BY started_at DESC LIMIT 1
) AS latest ON true;
