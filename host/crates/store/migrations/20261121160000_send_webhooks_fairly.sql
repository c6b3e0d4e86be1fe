-- What the sender needs to be fair between receivers, and what a redelivery needs. `next_attempt_at` is also the
-- lease: while a host sends, it lies behind the longest time that an attempt takes.
ALTER TABLE webhook_deliveries
    DROP COLUMN leased_until,
    -- Which of the settings the URL is from: a redelivery goes to what that setting says by then.
    ADD COLUMN target           text        NOT NULL DEFAULT 'primary'
        CHECK (target IN ('primary', 'secondary', 'override')),
    -- One receiver: the URL of one environment, short enough for an index.
    ADD COLUMN endpoint         uuid        NOT NULL
        GENERATED ALWAYS AS (md5(environment_pk::text || ' ' || url)::uuid) STORED,
    -- Attempts of earlier deliveries of the same message: a redelivery begins the table of delays anew.
    ADD COLUMN attempts_before  integer     NOT NULL DEFAULT 0,
    -- However few attempts there were by then, it is given up.
    ADD COLUMN expires_at       timestamptz NOT NULL DEFAULT now() + interval '4 days';

CREATE INDEX webhook_deliveries_by_endpoint ON webhook_deliveries (endpoint, next_attempt_at)
    WHERE state = 'pending';
-- The log is read by state, newest first, also when few of millions have that state.
DROP INDEX webhook_deliveries_by_age;
CREATE INDEX webhook_deliveries_by_state ON webhook_deliveries (environment_pk, state, pk DESC);
CREATE INDEX webhook_deliveries_by_connection ON webhook_deliveries (connection_pk, pk DESC)
    WHERE connection_pk IS NOT NULL;
CREATE INDEX webhook_deliveries_by_end ON webhook_deliveries (finished_at) WHERE finished_at IS NOT NULL;
