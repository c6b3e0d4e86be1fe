-- Queued executions of functions.

-- Functions that run while no client waits: asynchronous actions, webhook functions, and post-creation functions.
-- Synchronous actions with an `Idempotency-Key` have a row too, so that a repeated request gets the result of the
-- first. Results outlive the connection, so there is no reference to it.
CREATE TABLE function_jobs (
    pk                  bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id                  uuid        NOT NULL UNIQUE,
    environment_pk      bigint      NOT NULL REFERENCES environments ON DELETE CASCADE,
    integration_pk      bigint      NOT NULL,
    connection_pk       bigint      NOT NULL,
    integration_key     text        NOT NULL,
    connection_id       text        NOT NULL,
    kind                text        NOT NULL CHECK (kind IN ('action', 'lifecycle', 'webhook')),
    function_name       text        NOT NULL,
    state               text        NOT NULL CHECK (state IN ('queued', 'running', 'success', 'error')),
    -- False if a client waits for the result of a request with an `Idempotency-Key`.
    is_async            boolean     NOT NULL,
    -- Whether the job starts only after all earlier ordered jobs of its connection have finished.
    is_ordered          boolean     NOT NULL,
    idempotency_key     text,
    -- The first request with the key. A repeated request has to be equal.
    sealed_request      bytea,
    sealed_input        bytea,
    sealed_result       bytea,
    -- The inbound webhook that a webhook function handles, and the indexes of the events that the function is given;
    -- null means all events.
    webhook_id          uuid,
    webhook_items       integer[],

    max_retries         integer     NOT NULL,
    failures            integer     NOT NULL DEFAULT 0,
    -- The number of hosts that were lost while they ran the job.
    losses              integer     NOT NULL DEFAULT 0,
    -- When a queued job may start.
    due_at              timestamptz NOT NULL DEFAULT now(),
    -- The lease of a running job, which its host renews.
    owner               uuid,
    lease_expires_at    timestamptz,
    -- The fencing token: each claim sets a new one, and every write of the attempt compares it.
    fence               bigint      NOT NULL DEFAULT 0,
    created_at          timestamptz NOT NULL DEFAULT now(),
    expires_at          timestamptz
);
-- Ciphertext does not compress.
ALTER TABLE function_jobs ALTER COLUMN sealed_input SET STORAGE EXTERNAL;
ALTER TABLE function_jobs ALTER COLUMN sealed_result SET STORAGE EXTERNAL;
CALL declare_sealed('function_jobs', 'sealed_request');
CALL declare_sealed('function_jobs', 'sealed_input');
CALL declare_sealed('function_jobs', 'sealed_result');
CREATE INDEX function_jobs_by_environment ON function_jobs (environment_pk);
CREATE UNIQUE INDEX function_jobs_by_key ON function_jobs (connection_pk, function_name, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX function_jobs_queued ON function_jobs (connection_pk, pk) WHERE state = 'queued';
CREATE INDEX function_jobs_ordered ON function_jobs (connection_pk, pk)
    WHERE is_ordered AND state IN ('queued', 'running');
CREATE INDEX function_jobs_leased ON function_jobs (lease_expires_at) WHERE state = 'running';
CREATE INDEX function_jobs_expired ON function_jobs (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX function_jobs_by_webhook ON function_jobs (webhook_id) WHERE webhook_id IS NOT NULL;
