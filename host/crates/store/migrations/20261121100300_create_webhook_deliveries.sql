-- What clients are to be told, written in the transaction that it reports, so that none is lost. A delivery is
-- one message to one URL; it is tried until it is taken or given up, and kept for a while as a log.
CREATE TABLE webhook_deliveries (
    pk              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- Sent as `webhook-id`: the same in every attempt and for both URLs of an environment.
    message_id      uuid        NOT NULL,
    id              uuid        NOT NULL UNIQUE,
    environment_pk  bigint      NOT NULL,
    connection_pk   bigint,
    type            text        NOT NULL,
    url             text        NOT NULL,
    -- The provider's own headers, for what is forwarded.
    headers         jsonb       NOT NULL DEFAULT '{}',
    body            text        NOT NULL,
    state           text        NOT NULL CHECK (state IN ('pending', 'delivered', 'failed', 'cancelled')),
    attempts        integer     NOT NULL DEFAULT 0,
    next_attempt_at timestamptz,
    owner           uuid,
    leased_until    timestamptz,
    created_at      timestamptz NOT NULL DEFAULT now(),
    finished_at     timestamptz
);
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (next_attempt_at) WHERE state = 'pending';
CREATE INDEX webhook_deliveries_by_age ON webhook_deliveries (environment_pk, pk DESC);

CREATE TABLE webhook_attempts (
    delivery_pk     bigint      NOT NULL REFERENCES webhook_deliveries ON DELETE CASCADE,
    number          integer     NOT NULL,
    at              timestamptz NOT NULL DEFAULT now(),
    status          integer,
    error           text,
    duration_ms     integer     NOT NULL,
    PRIMARY KEY (delivery_pk, number)
);

-- URLs that answered 410 Gone are left alone until they are set anew.
CREATE TABLE webhook_endpoints_gone (
    environment_pk  bigint      NOT NULL REFERENCES environments ON DELETE CASCADE,
    url             text        NOT NULL,
    gone_at         timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (environment_pk, url)
);
