-- Until when a provider asked to be left alone, so that every host of ours leaves it alone. Most of the time there
-- is no row: hosts hear of new ones by notification, and look every few seconds.
CREATE TABLE rate_limits (
    integration_pk  bigint      NOT NULL REFERENCES integrations ON DELETE CASCADE,
    -- 0 for all connections of the integration together.
    connection_pk   bigint      NOT NULL,
    held_until      timestamptz NOT NULL,
    PRIMARY KEY (integration_pk, connection_pk)
);
