-- What providers have told, stored before it is answered and processed afterwards. The id is a UUID of version 7, so
-- the primary key is the order of arrival too. `state` is `received` until connections are found; then `processing`
-- while functions run for them, and in the end `processed`, `unmatched` (about no connection that there is) or
-- `failed` (a function has failed for good). There is no reference to integrations, since a check of it for each
-- webhook would lock the integration's row: what belongs to none any more is removed in the background.
CREATE TABLE received_webhooks (
    id              uuid        PRIMARY KEY,
    environment_pk  bigint      NOT NULL,
    integration_pk  bigint      NOT NULL,
    event_type      text,
    -- The provider's name for the delivery, or what else no other delivery has.
    delivery_id     text,
    -- Without those that are for the way only, or hold secrets.
    headers         jsonb       NOT NULL,
    query           text        NOT NULL,
    format          text        NOT NULL CHECK (format IN ('json', 'form', 'text')),
    body            bytea       COMPRESSION lz4 NOT NULL,
    state           text        NOT NULL
        CHECK (state IN ('received', 'processing', 'processed', 'unmatched', 'failed')),
    connections     integer     NOT NULL DEFAULT 0,
    jobs_left       integer     NOT NULL DEFAULT 0,
    jobs_failed     integer     NOT NULL DEFAULT 0,
    -- How often it was replayed.
    replays         integer     NOT NULL DEFAULT 0,
    -- How often finding connections has failed on our side, and when it is tried again.
    failures        integer     NOT NULL DEFAULT 0,
    due_at          timestamptz NOT NULL DEFAULT now(),
    error           text,
    received_at     timestamptz NOT NULL DEFAULT now(),
    finished_at     timestamptz
);
-- A delivery that the provider sends again is dropped here.
CREATE UNIQUE INDEX received_webhooks_once ON received_webhooks (integration_pk, delivery_id)
    WHERE delivery_id IS NOT NULL;
-- Integrations take turns, and lists are of integrations too.
CREATE INDEX received_webhooks_by_state ON received_webhooks (integration_pk, state, id);

-- The functions that run for one are jobs. `webhook_items` says which of its events they are given; null is all.
ALTER TABLE function_jobs
    ADD COLUMN webhook_id uuid,
    ADD COLUMN webhook_items integer[],
    DROP CONSTRAINT function_jobs_kind_check,
    ADD CONSTRAINT function_jobs_kind_check CHECK (kind IN ('action', 'lifecycle', 'webhook'));
CREATE INDEX function_jobs_by_webhook ON function_jobs (webhook_id) WHERE webhook_id IS NOT NULL;
