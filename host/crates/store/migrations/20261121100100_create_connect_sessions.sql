-- What lets one end user connect accounts for a while. The token is kept as its SHA-256.
CREATE TABLE connect_sessions (
    pk                              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id                              uuid        NOT NULL UNIQUE,
    environment_pk                  bigint      NOT NULL REFERENCES environments ON DELETE CASCADE,
    token_hash                      bytea       NOT NULL UNIQUE,
    end_user                        jsonb,
    tags                            jsonb       NOT NULL DEFAULT '{}',
    -- Null: all of the environment's.
    allowed_integrations            text[],
    integrations_config_defaults    jsonb       NOT NULL DEFAULT '{}',
    overrides                       jsonb       NOT NULL DEFAULT '{}',
    webhook_url_override            text,
    -- The connection that is connected anew; null for a new one.
    reconnects_pk                   bigint      REFERENCES connections ON DELETE CASCADE,
    created_at                      timestamptz NOT NULL DEFAULT now(),
    expires_at                      timestamptz NOT NULL
);
CREATE INDEX connect_sessions_by_expiry ON connect_sessions (expires_at);

-- One end user on the way to a provider's page and back. The state that comes back is kept as its SHA-256,
-- and so is what binds it to the browser that left. The row is taken once; its outcome stays a while for
-- whoever waits for it on any host.
CREATE TABLE authorizations (
    pk                  bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id                  uuid        NOT NULL UNIQUE,
    environment_pk      bigint      NOT NULL REFERENCES environments ON DELETE CASCADE,
    integration_pk      bigint      NOT NULL REFERENCES integrations ON DELETE CASCADE,
    connect_session_pk  bigint      REFERENCES connect_sessions ON DELETE CASCADE,
    state_hash          bytea       NOT NULL UNIQUE,
    browser_hash        bytea       NOT NULL,
    connection_id       text        NOT NULL,
    connection_config   jsonb       NOT NULL,
    -- The PKCE verifier, the secret of temporary credentials, and credentials of the connection's own app.
    sealed_secrets      bytea       NOT NULL,
    -- Who is told over a web socket.
    listener            uuid,
    taken_at            timestamptz,
    outcome             jsonb,
    created_at          timestamptz NOT NULL DEFAULT now(),
    expires_at          timestamptz NOT NULL
);
CREATE INDEX authorizations_by_expiry ON authorizations (expires_at);
CREATE INDEX authorizations_by_listener ON authorizations (listener) WHERE listener IS NOT NULL;
