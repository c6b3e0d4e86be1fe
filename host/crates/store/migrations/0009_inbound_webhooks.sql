-- Inbound webhooks, which providers send to Syncline.

-- A webhook is stored before it is acknowledged, and processed afterwards. Its id is a version 7 UUID, so the primary
-- key is also the order of arrival. States:
--
--   received    the connections that it concerns are not found yet
--   processing  functions run for those connections
--   processed   all functions have succeeded
--   unmatched   it concerns no existing connection
--   failed      a function has failed and is not retried
--   handshake   the provider tried the URL before there was a secret to verify it with; kept for inspection only
--
-- There are no references to integrations, because checking one for each webhook would lock the integration's row. The
-- webhooks of deleted integrations are removed in the background.
CREATE TABLE inbound_webhooks (
    id              uuid        PRIMARY KEY,
    environment_pk  bigint      NOT NULL,
    integration_pk  bigint      NOT NULL,
    event_type      text,
    -- The provider's id of the delivery, or another value that is unique to it.
    delivery_id     text,
    -- What the provider's signature covers, if it covers the time and not the delivery id: an attacker who replays a
    -- recorded delivery could change the id, but not this.
    fingerprint     text,
    -- Without hop-by-hop headers and headers that contain secrets.
    headers         jsonb       NOT NULL,
    query           text        NOT NULL,
    format          text        NOT NULL CHECK (format IN ('json', 'form', 'text')),
    body            bytea       COMPRESSION lz4 NOT NULL,
    state           text        NOT NULL
        CHECK (state IN ('received', 'processing', 'processed', 'unmatched', 'failed', 'handshake')),
    connections     integer     NOT NULL DEFAULT 0,
    jobs_left       integer     NOT NULL DEFAULT 0,
    jobs_failed     integer     NOT NULL DEFAULT 0,
    -- How often a client has replayed the webhook.
    replays         integer     NOT NULL DEFAULT 0,
    -- How often the host failed to find the connections, and when it tries again.
    failures        integer     NOT NULL DEFAULT 0,
    due_at          timestamptz NOT NULL DEFAULT now(),
    error           text,
    received_at     timestamptz NOT NULL DEFAULT now(),
    finished_at     timestamptz
);
-- These two indexes drop a delivery that arrives again.
CREATE UNIQUE INDEX inbound_webhooks_delivery_id ON inbound_webhooks (integration_pk, delivery_id)
    WHERE delivery_id IS NOT NULL;
CREATE UNIQUE INDEX inbound_webhooks_fingerprint ON inbound_webhooks (integration_pk, fingerprint)
    WHERE fingerprint IS NOT NULL;
-- For lists of an integration's webhooks, and for fair queueing between integrations.
CREATE INDEX inbound_webhooks_by_state ON inbound_webhooks (integration_pk, state, id);
