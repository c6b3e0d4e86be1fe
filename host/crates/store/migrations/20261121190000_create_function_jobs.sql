-- Functions that are run for somebody who does not wait: asynchronous actions, and what follows the creation of a
-- connection. Requests with an Idempotency-Key have a row too, so that a repeat finds what the first came to.
--
-- `due_at` is when a queued job may run. While one runs, its host renews the lease; the fence is a new one with each
-- claim, and every write of the attempt compares it. There is no reference to the connection: results are kept when
-- it is deleted.
CREATE TABLE function_jobs (
    pk                  bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id                  uuid        NOT NULL UNIQUE,
    environment_pk      bigint      NOT NULL REFERENCES environments ON DELETE CASCADE,
    integration_pk      bigint      NOT NULL,
    connection_pk       bigint      NOT NULL,
    integration_key     text        NOT NULL,
    connection_id       text        NOT NULL,
    kind                text        NOT NULL CHECK (kind IN ('action', 'lifecycle')),
    function_name       text        NOT NULL,
    state               text        NOT NULL CHECK (state IN ('queued', 'running', 'success', 'error')),
    -- False: a request waits for it, with an Idempotency-Key.
    is_async            boolean     NOT NULL,
    -- It begins when every ordered job of the connection before it is over.
    is_ordered          boolean     NOT NULL,
    idempotency_key     text,
    -- What a repeat of the key is compared with.
    sealed_request      bytea,
    sealed_input        bytea,
    sealed_result       bytea,
    max_retries         integer     NOT NULL,
    failures            integer     NOT NULL DEFAULT 0,
    -- How many hosts were lost while they ran it.
    losses              integer     NOT NULL DEFAULT 0,
    due_at              timestamptz NOT NULL DEFAULT now(),
    owner               uuid,
    lease_expires_at    timestamptz,
    fence               bigint      NOT NULL DEFAULT 0,
    created_at          timestamptz NOT NULL DEFAULT now(),
    expires_at          timestamptz
);
-- Ciphertext does not compress.
ALTER TABLE function_jobs ALTER COLUMN sealed_input SET STORAGE EXTERNAL;
ALTER TABLE function_jobs ALTER COLUMN sealed_result SET STORAGE EXTERNAL;
CREATE UNIQUE INDEX function_jobs_by_key ON function_jobs (connection_pk, function_name, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX function_jobs_queued ON function_jobs (connection_pk, pk) WHERE state = 'queued';
CREATE INDEX function_jobs_in_order ON function_jobs (connection_pk, pk)
    WHERE is_ordered AND state IN ('queued', 'running');
CREATE INDEX function_jobs_leased ON function_jobs (lease_expires_at) WHERE state = 'running';
CREATE INDEX function_jobs_expired ON function_jobs (expires_at) WHERE expires_at IS NOT NULL;

-- The attempts of a job are runs of their own.
ALTER TABLE runs ADD COLUMN job_id uuid;
