-- Integrations, and the rate limits of their providers.

-- A provider set up in an environment, under the unique key that clients send as `provider_config_key`. Sealed values
-- are bound to the row by `id`, which never changes.
CREATE TABLE integrations (
    pk                  bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id                  uuid        NOT NULL UNIQUE,
    environment_pk      bigint      NOT NULL REFERENCES environments ON DELETE CASCADE,
    unique_key          text        NOT NULL,
    provider            text        NOT NULL,
    display_name        text,
    forward_webhooks    boolean     NOT NULL DEFAULT true,
    sealed_credentials  bytea,
    -- Further settings of the integration. Some of them may be secret, so all of them are sealed.
    sealed_settings     bytea,
    created_at          timestamptz NOT NULL DEFAULT now(),
    updated_at          timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT integrations_unique_key UNIQUE (environment_pk, unique_key)
);
CALL declare_sealed('integrations', 'sealed_credentials');
CALL declare_sealed('integrations', 'sealed_settings');

-- Until when a provider has asked not to be called, so that every host backs off. The table is empty most of the time:
-- hosts are notified of new rows, and read the table every few seconds.
CREATE TABLE rate_limits (
    integration_pk  bigint      NOT NULL REFERENCES integrations ON DELETE CASCADE,
    -- 0 means all connections of the integration.
    connection_pk   bigint      NOT NULL,
    backoff_until   timestamptz NOT NULL,
    PRIMARY KEY (integration_pk, connection_pk)
);
