-- Fences grow over all schedules: one that is made again under an old name stands above its past.
CREATE SEQUENCE run_fences;

-- When a sync of a connection and variant is due. `due_at` is what the scheduler looks at: the next regular
-- slot, a retry, or at once after a trigger; null while nothing is to come. `run_id` is set while a run is on,
-- under a lease that its owner renews; `fence` grows with each claim and is checked by every write of the run.
CREATE TABLE schedules (
    pk                  bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id                  uuid        NOT NULL UNIQUE DEFAULT gen_random_uuid(),
    environment_pk      bigint      NOT NULL REFERENCES environments ON DELETE CASCADE,
    integration_pk      bigint      NOT NULL REFERENCES integrations ON DELETE CASCADE,
    connection_pk       bigint      NOT NULL REFERENCES connections ON DELETE CASCADE,
    sync_name           text        NOT NULL,
    variant             text        NOT NULL,
    state               text        NOT NULL CHECK (state IN ('running', 'paused')),
    frequency_override  text,
    next_run_at         timestamptz,
    due_at              timestamptz,
    due_reason          text        NOT NULL CHECK (due_reason IN ('schedule', 'trigger', 'start', 'retry')),
    reset_wanted        boolean     NOT NULL DEFAULT false,
    empty_cache_wanted  boolean     NOT NULL DEFAULT false,
    failures            integer     NOT NULL DEFAULT 0,
    fence               bigint      NOT NULL DEFAULT 0,
    run_id              uuid,
    run_owner           uuid,
    lease_expires_at    timestamptz,
    -- What the run in progress has taken over from the wishes above and has yet to do.
    run_resets          boolean     NOT NULL DEFAULT false,
    run_empties_cache   boolean     NOT NULL DEFAULT false,
    cancel_wanted       boolean     NOT NULL DEFAULT false,
    created_at          timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT schedules_sync UNIQUE (connection_pk, sync_name, variant)
);
CREATE INDEX schedules_due ON schedules (due_at) WHERE run_id IS NULL AND due_at IS NOT NULL;
CREATE INDEX schedules_leased ON schedules (lease_expires_at) WHERE run_id IS NOT NULL;
CREATE INDEX schedules_by_integration ON schedules (integration_pk, sync_name, variant);

-- One execution of a function. `attempt` counts the tries that a failure caused.
CREATE TABLE runs (
    id                  uuid        PRIMARY KEY,
    environment_pk      bigint      NOT NULL REFERENCES environments ON DELETE CASCADE,
    connection_pk       bigint      NOT NULL,
    schedule_pk         bigint,
    kind                text        NOT NULL,
    function_name       text        NOT NULL,
    variant             text        NOT NULL,
    trigger             text        NOT NULL,
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
    started_at          timestamptz NOT NULL,
    finished_at         timestamptz
);
CREATE INDEX runs_by_schedule ON runs (schedule_pk, started_at DESC) WHERE schedule_pk IS NOT NULL;
CREATE INDEX runs_by_age ON runs (environment_pk, started_at DESC);

CREATE TABLE run_logs (
    run_id      uuid        NOT NULL REFERENCES runs ON DELETE CASCADE,
    line        integer     NOT NULL,
    at          timestamptz NOT NULL,
    level       text        NOT NULL,
    message     text        NOT NULL,
    fields      jsonb,
    PRIMARY KEY (run_id, line)
);
