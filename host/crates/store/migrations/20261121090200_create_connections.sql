-- One end user's link to a provider. The environment stands here too, so that lists need no join.
-- What is sealed is bound to its row by the `id`.
CREATE TABLE connections (
    pk                  bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id                  uuid        NOT NULL UNIQUE,
    environment_pk      bigint      NOT NULL REFERENCES environments ON DELETE CASCADE,
    integration_pk      bigint      NOT NULL REFERENCES integrations ON DELETE CASCADE,
    connection_id       text        NOT NULL,
    sealed_credentials  bytea       NOT NULL,
    connection_config   jsonb       NOT NULL DEFAULT '{}',
    metadata            jsonb,
    tags                jsonb       NOT NULL DEFAULT '{}',
    end_user            jsonb,
    webhook_url_override text,
    created_at          timestamptz NOT NULL DEFAULT now(),
    updated_at          timestamptz NOT NULL DEFAULT now(),
    last_fetched_at     timestamptz,
    CONSTRAINT connections_connection_id UNIQUE (integration_pk, connection_id)
);
CREATE INDEX connections_by_age ON connections (environment_pk, created_at DESC, pk DESC);
CREATE INDEX connections_by_id ON connections (environment_pk, connection_id);
