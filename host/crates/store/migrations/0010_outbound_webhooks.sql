-- Outbound webhooks, which Syncline sends to the customer's backend.

-- One message to one URL. It is written in the transaction whose result it reports, so that no message is lost. It is
-- tried until the receiver accepts it or it is given up, and is then kept as a log until retention removes it.
CREATE TABLE outbound_webhook_deliveries (
    pk              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id              uuid        NOT NULL UNIQUE,
    -- Sent as `webhook-id`: the same in every attempt and for both URLs of an environment.
    message_id      uuid        NOT NULL,
    environment_pk  bigint      NOT NULL,
    connection_pk   bigint,
    type            text        NOT NULL,
    -- Which setting the URL comes from. A redelivery is sent to the current URL of that setting.
    target          text        NOT NULL DEFAULT 'primary'
        CHECK (target IN ('primary', 'secondary', 'override')),
    url             text        NOT NULL,
    -- Identifies one receiver, a URL of an environment, by a value that is short enough for an index. The sender is
    -- fair between receivers.
    endpoint        uuid        NOT NULL
        GENERATED ALWAYS AS (md5(environment_pk::text || ' ' || url)::uuid) STORED,
    -- The provider's own headers, if the message forwards an inbound webhook.
    headers         jsonb       NOT NULL DEFAULT '{}',
    body            text        NOT NULL,
    state           text        NOT NULL CHECK (state IN ('pending', 'delivered', 'failed', 'cancelled')),
    attempts        integer     NOT NULL DEFAULT 0,
    -- The attempts of earlier deliveries of the same message. A redelivery starts with the first delay again.
    attempts_before integer     NOT NULL DEFAULT 0,
    -- Also the lease: while a host sends, this is later than the longest time that an attempt can take.
    next_attempt_at timestamptz,
    owner           uuid,
    created_at      timestamptz NOT NULL DEFAULT now(),
    -- After this time the delivery is given up, even after few attempts.
    expires_at      timestamptz NOT NULL DEFAULT now() + interval '4 days',
    finished_at     timestamptz
);
CREATE INDEX outbound_webhook_deliveries_due ON outbound_webhook_deliveries (next_attempt_at) WHERE state = 'pending';
CREATE INDEX outbound_webhook_deliveries_by_endpoint ON outbound_webhook_deliveries (endpoint, next_attempt_at)
    WHERE state = 'pending';
-- Lists read each state separately, newest first, so that a rare state among millions of deliveries is found at once.
CREATE INDEX outbound_webhook_deliveries_by_state ON outbound_webhook_deliveries (environment_pk, state, pk DESC);
CREATE INDEX outbound_webhook_deliveries_by_connection ON outbound_webhook_deliveries (connection_pk, pk DESC)
    WHERE connection_pk IS NOT NULL;
CREATE INDEX outbound_webhook_deliveries_by_finish ON outbound_webhook_deliveries (finished_at)
    WHERE finished_at IS NOT NULL;

-- The attempts of each delivery.
CREATE TABLE outbound_webhook_attempts (
    delivery_pk     bigint      NOT NULL REFERENCES outbound_webhook_deliveries ON DELETE CASCADE,
    number          integer     NOT NULL,
    at              timestamptz NOT NULL DEFAULT now(),
    -- The HTTP status of the response; null if the receiver did not respond.
    status          integer,
    error           text,
    duration_ms     integer     NOT NULL,
    PRIMARY KEY (delivery_pk, number)
);

-- URLs that answered 410 Gone. Nothing is sent to them until they are set again.
CREATE TABLE outbound_webhook_gone_urls (
    environment_pk  bigint      NOT NULL REFERENCES environments ON DELETE CASCADE,
    url             text        NOT NULL,
    gone_at         timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (environment_pk, url)
);
