-- When syncs are due, and the runs of all functions.

-- Numbers the fencing tokens of all schedules. One sequence for all of them means that a schedule that is deleted and
-- created again continues above its earlier tokens.
CREATE SEQUENCE run_fences;

-- One sync of one connection and variant.
CREATE TABLE schedules (
    pk                  bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id                  uuid        NOT NULL DEFAULT gen_random_uuid(),
    environment_pk      bigint      NOT NULL REFERENCES environments ON DELETE CASCADE,
    integration_pk      bigint      NOT NULL REFERENCES integrations ON DELETE CASCADE,
    connection_pk       bigint      NOT NULL REFERENCES connections ON DELETE CASCADE,
    sync_name           text        NOT NULL,
    variant             text        NOT NULL,
    state               text        NOT NULL CHECK (state IN ('running', 'paused')),
    frequency_override  text,
    created_at          timestamptz NOT NULL DEFAULT now(),
    -- Set first when a variant is deleted: no run of it can be triggered or claimed while its records are removed. If
    -- the deleting host is lost, another host finds the variant here and finishes.
    retired_at          timestamptz,

    -- The next regular slot.
    next_run_at         timestamptz,
    -- When the scheduler starts the next run: at the next regular slot, for a retry, or at once after a trigger. Null
    -- if no run is to start.
    due_at              timestamptz,
    due_reason          text        NOT NULL CHECK (due_reason IN ('schedule', 'trigger', 'start', 'retry')),
    -- Whether the due run continues one that was lost with its host or stopped early. A paused schedule completes it.
    is_interrupted      boolean     NOT NULL DEFAULT false,
    -- Whether the schedule is due but waits because its connection has reached its limit of concurrent runs. The end
    -- of one of those runs clears it.
    awaits_permit       boolean     NOT NULL DEFAULT false,
    -- The requests of clients for the next run.
    reset_requested     boolean     NOT NULL DEFAULT false,
    empty_cache_requested boolean   NOT NULL DEFAULT false,
    -- Consecutive failures.
    failures            integer     NOT NULL DEFAULT 0,

    -- The run in progress, and the lease that its host renews.
    run_id              uuid,
    run_owner           uuid,
    lease_expires_at    timestamptz,
    -- The fencing token. It grows with each claim, and every write of the run compares it.
    fence               bigint      NOT NULL DEFAULT 0,
    -- The requests above that the run in progress has taken over and not applied yet.
    run_resets          boolean     NOT NULL DEFAULT false,
    run_empties_cache   boolean     NOT NULL DEFAULT false,
    -- Whether a client has requested to cancel the run in progress.
    cancel_requested    boolean     NOT NULL DEFAULT false,

    -- The start of the first attempt since the last reported success. The webhook that reports the next success covers
    -- everything saved since then, including what lost and failed attempts have saved.
    unreported_since    timestamptz,
    -- The start of the latest successful run. Kept here because old runs are removed.
    last_success_at     timestamptz,
    CONSTRAINT schedules_sync UNIQUE (connection_pk, sync_name, variant)
) WITH (
    -- The renewal of a lease changes no index, so Postgres can write it to the same page while the page has room.
    fillfactor = 80,
    -- Every run leaves two dead rows, and claims search among them.
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX schedules_by_environment ON schedules (environment_pk);
CREATE INDEX schedules_by_integration ON schedules (integration_pk, sync_name, variant);
-- Claims are fair between integrations. The first entry of an integration is its longest due schedule, so an
-- integration with a million due schedules costs a claim as much as one with ten.
CREATE INDEX schedules_waiting ON schedules (integration_pk, due_at)
    WHERE run_id IS NULL AND due_at IS NOT NULL AND NOT awaits_permit;
CREATE INDEX schedules_awaiting_permit ON schedules (connection_pk, due_at) WHERE awaits_permit;
CREATE INDEX schedules_in_progress ON schedules (integration_pk, connection_pk) WHERE run_id IS NOT NULL;
CREATE INDEX schedules_retired ON schedules (retired_at) WHERE retired_at IS NOT NULL;

-- One execution of a function. Runs outlive their connection, schedule and integration, so they do not refer to them.
CREATE TABLE runs (
    id                  uuid        PRIMARY KEY,
    environment_pk      bigint      NOT NULL REFERENCES environments ON DELETE CASCADE,
    integration_pk      bigint,
    connection_pk       bigint      NOT NULL,
    -- Only for a sync.
    schedule_pk         bigint,
    -- Only for an attempt of a job.
    job_id              uuid,
    kind                text        NOT NULL,
    function_name       text        NOT NULL,
    variant             text        NOT NULL,
    trigger             text        NOT NULL,
    -- 1 for the first try; each retry after a failure adds 1.
    attempt             integer     NOT NULL,
    fence               bigint,
    owner               uuid        NOT NULL,
    state               text        NOT NULL CHECK (state IN ('running', 'success', 'error', 'cancelled', 'lost')),
    error_code          text,
    error_message       text,
    error_details       jsonb,
    counts              jsonb,
    cpu_us              bigint,
    peak_memory_bytes   bigint,
    requests            bigint,
    sent_bytes          bigint,
    received_bytes      bigint,
    -- The records that the function has passed to save and delete calls, including those that did not change.
    records             bigint,
    -- The progress that the function has reported.
    progress_done       bigint,
    progress_total      bigint,
    started_at          timestamptz NOT NULL,
    finished_at         timestamptz,
    -- When the deletions that the run had held back were approved.
    approved_at         timestamptz
);
CREATE INDEX runs_by_schedule ON runs (schedule_pk, started_at DESC) WHERE schedule_pk IS NOT NULL;
-- Lists read each state separately, so that one failed run among a million successful ones is found at once. Retention
-- uses the first of these indexes too.
CREATE INDEX runs_by_state ON runs (environment_pk, state, started_at DESC, id DESC);
CREATE INDEX runs_by_integration_and_state ON runs (integration_pk, state, started_at DESC, id DESC);
CREATE INDEX runs_by_connection ON runs (connection_pk, started_at DESC, id DESC);
-- When a connection is deleted, its runs in progress are closed.
CREATE INDEX runs_running ON runs (connection_pk) WHERE state = 'running';

-- The log lines of runs.
CREATE TABLE run_logs (
    run_id      uuid        NOT NULL REFERENCES runs ON DELETE CASCADE,
    line        integer     NOT NULL,
    at          timestamptz NOT NULL,
    level       text        NOT NULL,
    message     text        NOT NULL,
    fields      jsonb,
    PRIMARY KEY (run_id, line)
);

-- Runs whose held deletions a client has approved, until `runs.approved_at` is set. If the host is lost in between,
-- the records may be deleted already without a report; another host finds the run here and finishes the approval.
CREATE TABLE approvals_in_progress (
    run_id      uuid        PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE,
    -- When a host last began to apply the approval.
    claimed_at  timestamptz NOT NULL DEFAULT now()
);
