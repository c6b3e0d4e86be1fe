-- Runs are listed for clients, newest first, and tell of themselves while they are on.
ALTER TABLE runs
    ADD COLUMN integration_pk  bigint,
    ADD COLUMN sent_bytes      bigint,
    ADD COLUMN received_bytes  bigint,
    -- Handed over to be saved or deleted, also those that had not changed.
    ADD COLUMN records         bigint,
    -- How far the function says that it is.
    ADD COLUMN progress_done   bigint,
    ADD COLUMN progress_total  bigint;
UPDATE runs SET integration_pk = c.integration_pk FROM connections c WHERE c.pk = runs.connection_pk;

-- Each state is read by itself, so that a rare one is found as fast as a common one. What is old is found by it too.
CREATE INDEX runs_listed ON runs (environment_pk, state, started_at DESC, id DESC);
CREATE INDEX runs_of_integration ON runs (integration_pk, started_at DESC, id DESC);
CREATE INDEX runs_of_connection ON runs (connection_pk, started_at DESC, id DESC);
DROP INDEX runs_by_age;

-- The start of the latest run that succeeded. Runs are removed by age; that a sync has succeeded must not be
-- forgotten with them.
ALTER TABLE schedules ADD COLUMN last_success_at timestamptz;
UPDATE schedules s
SET last_success_at = (SELECT max(r.started_at) FROM runs r WHERE r.schedule_pk = s.pk AND r.state = 'success');
