-- Statistics of ended runs, and indexes for lists of many runs, connections and deployments.

-- When the run became due: the time of the schedule, trigger or retry, or the time from which a queued job could
-- start. Null for a function that starts at once, without a queue.
ALTER TABLE runs ADD COLUMN due_at timestamptz;
-- How long the run's requests waited because of rate limits, in total.
ALTER TABLE runs ADD COLUMN backoff_ms bigint;

-- Lists of one function. An integration's key precedes the state, so that a rarely used integration is found at once
-- even if other integrations have a function of the same name that runs all the time.
CREATE INDEX runs_by_function ON runs
    (environment_pk, function_name, integration_pk, state, started_at DESC, id DESC);
CREATE INDEX runs_by_kind ON runs (environment_pk, kind, state, started_at DESC, id DESC);

-- The runs that have ended and are not yet counted in `run_statistics`. A trigger writes a row in the transaction that
-- ends a run, so each run that has ended is here or counted, and never both. The transaction that counts a row also
-- deletes it.
--
-- The trigger does not update `run_statistics` itself: all runs of an integration change the same few rows, and would
-- wait for each other.
CREATE TABLE ended_runs (
    pk              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    environment_pk  bigint      NOT NULL,
    integration_pk  bigint,
    kind            text        NOT NULL,
    state           text        NOT NULL,
    started_at      timestamptz NOT NULL,
    finished_at     timestamptz NOT NULL,
    due_at          timestamptz,
    records_saved   bigint      NOT NULL,
    records_changed bigint      NOT NULL,
    backoff_ms      bigint      NOT NULL
) WITH (
    -- Every row is deleted after a few seconds, and each batch begins at the oldest row.
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0
);

-- The number of added, updated and deleted records in the counts of a run.
CREATE FUNCTION changed_records(counts jsonb) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(sum(coalesce((model.value->>'added')::bigint, 0) + coalesce((model.value->>'updated')::bigint, 0)
                        + coalesce((model.value->>'deleted')::bigint, 0)), 0)::bigint
    FROM jsonb_each(CASE WHEN jsonb_typeof(counts) = 'object' THEN counts END) AS model
$$;

-- Runs without a schedule are usually inserted after they have ended, in groups.
CREATE FUNCTION queue_inserted_runs() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO ended_runs (environment_pk, integration_pk, kind, state, started_at, finished_at, due_at,
                            records_saved, records_changed, backoff_ms)
    SELECT environment_pk, integration_pk, kind, state, started_at, coalesce(finished_at, now()), due_at,
           coalesce(records, 0), changed_records(counts), coalesce(backoff_ms, 0)
    FROM inserted WHERE state <> 'running';
    RETURN NULL;
END
$$;
CREATE TRIGGER runs_queue_inserted AFTER INSERT ON runs
    REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT EXECUTE FUNCTION queue_inserted_runs();

-- A run ends once: a later change of its state, such as an approval, is not counted.
CREATE FUNCTION queue_ended_run() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO ended_runs (environment_pk, integration_pk, kind, state, started_at, finished_at, due_at,
                            records_saved, records_changed, backoff_ms)
    VALUES (NEW.environment_pk, NEW.integration_pk, NEW.kind, NEW.state, NEW.started_at,
            coalesce(NEW.finished_at, now()), NEW.due_at, coalesce(NEW.records, 0), changed_records(NEW.counts),
            coalesce(NEW.backoff_ms, 0));
    RETURN NULL;
END
$$;
CREATE TRIGGER runs_queue_ended AFTER UPDATE OF state ON runs
    FOR EACH ROW WHEN (OLD.state = 'running' AND NEW.state <> 'running')
    EXECUTE FUNCTION queue_ended_run();

-- The ended runs of a period, by integration and kind of function. Each run counts in three periods: its hour, its
-- quarter of a day and its day, all in UTC. So the charts of a day, a week and a month each read about thirty rows of
-- an integration and kind.
CREATE TABLE run_statistics (
    environment_pk  bigint      NOT NULL REFERENCES environments ON DELETE CASCADE,
    -- The length of the period.
    hours           smallint    NOT NULL CHECK (hours IN (1, 6, 24)),
    starts_at       timestamptz NOT NULL,
    integration_pk  bigint      NOT NULL,
    kind            text        NOT NULL,
    succeeded       bigint      NOT NULL,
    failed          bigint      NOT NULL,
    cancelled       bigint      NOT NULL,
    lost            bigint      NOT NULL,
    records_saved   bigint      NOT NULL,
    records_changed bigint      NOT NULL,
    backoff_ms      bigint      NOT NULL,
    duration_ms     bigint      NOT NULL,
    -- Histograms: the number of runs in each logarithmic bucket, without the empty buckets at the end.
    durations       bigint[]    NOT NULL,
    queue_delay_ms  bigint      NOT NULL,
    queue_delays    bigint[]    NOT NULL,
    PRIMARY KEY (environment_pk, hours, starts_at, integration_pk, kind)
) WITH (fillfactor = 70);
CREATE INDEX run_statistics_by_age ON run_statistics (starts_at);

CREATE FUNCTION add_histograms(one bigint[], other bigint[]) RETURNS bigint[]
LANGUAGE sql IMMUTABLE AS $$
    SELECT ARRAY(
        SELECT coalesce(a, 0) + coalesce(b, 0)
        FROM unnest(one, other) WITH ORDINALITY AS bucket (a, b, number)
        ORDER BY number
    )
$$;

-- Repeats the connection's environment, so that the errors of an environment are found without its connections.
ALTER TABLE connection_errors ADD COLUMN environment_pk bigint;
UPDATE connection_errors e SET environment_pk = c.environment_pk FROM connections c WHERE c.pk = e.connection_pk;
ALTER TABLE connection_errors ALTER COLUMN environment_pk SET NOT NULL;
-- Newest connection first, as in the list of connections.
CREATE INDEX connection_errors_by_environment ON connection_errors (environment_pk, connection_pk DESC);
CREATE INDEX connection_errors_by_code ON connection_errors (environment_pk, type, code);

-- What the deployment changed: a list of objects.
ALTER TABLE deployments ADD COLUMN changes jsonb NOT NULL DEFAULT '[]';
CREATE INDEX deployments_by_environment ON deployments (environment_pk, pk DESC);
