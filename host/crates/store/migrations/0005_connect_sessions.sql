-- Connect sessions, and the OAuth authorizations that they start.

-- Permission for one end user to connect accounts for a limited time. Only the SHA-256 of the session token is stored.
CREATE TABLE connect_sessions (
    pk                              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id                              uuid        NOT NULL UNIQUE,
    environment_pk                  bigint      NOT NULL REFERENCES environments ON DELETE CASCADE,
    token_hash                      bytea       NOT NULL UNIQUE,
    end_user                        jsonb,
    tags                            jsonb       NOT NULL DEFAULT '{}',
    -- Null allows all integrations of the environment.
    allowed_integrations            text[],
    integrations_config_defaults    jsonb       NOT NULL DEFAULT '{}',
    overrides                       jsonb       NOT NULL DEFAULT '{}',
    webhook_url_override            text,
    -- The connection to reconnect; null if the session creates a new connection.
    reconnects_pk                   bigint      REFERENCES connections ON DELETE CASCADE,
    created_at                      timestamptz NOT NULL DEFAULT now(),
    expires_at                      timestamptz NOT NULL
);
CREATE INDEX connect_sessions_by_environment ON connect_sessions (environment_pk);
CREATE INDEX connect_sessions_by_expiry ON connect_sessions (expires_at);
CREATE INDEX connect_sessions_by_connection ON connect_sessions (reconnects_pk) WHERE reconnects_pk IS NOT NULL;

-- One visit of an end user to a provider's authorization page. The `state` parameter that the provider returns, and
-- the cookie that binds it to the browser, are stored as SHA-256. The callback uses a row once, and sets `used_at`.
CREATE TABLE authorizations (
    pk                  bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id                  uuid        NOT NULL UNIQUE,
    environment_pk      bigint      NOT NULL REFERENCES environments ON DELETE CASCADE,
    integration_pk      bigint      NOT NULL REFERENCES integrations ON DELETE CASCADE,
    connect_session_pk  bigint      NOT NULL REFERENCES connect_sessions ON DELETE CASCADE,
    state_hash          bytea       NOT NULL UNIQUE,
    browser_hash        bytea       NOT NULL,
    connection_config   jsonb       NOT NULL,
    -- The PKCE verifier, the secret of temporary credentials, and the credentials of the connection's own app.
    sealed_secrets      bytea       NOT NULL,
    -- The listener of the outcome (see `authorization_outcomes`), if there is one.
    listener            uuid,
    used_at             timestamptz,
    created_at          timestamptz NOT NULL DEFAULT now(),
    expires_at          timestamptz NOT NULL
);
CALL declare_sealed('authorizations', 'sealed_secrets');
CREATE INDEX authorizations_by_environment ON authorizations (environment_pk);
CREATE INDEX authorizations_by_integration ON authorizations (integration_pk);
CREATE INDEX authorizations_by_expiry ON authorizations (expires_at);
CREATE INDEX authorizations_by_session ON authorizations (connect_session_pk);

-- The outcomes of authorizations, for clients that wait for one at any host: by a web socket, or by polling. An
-- authorization that was refused before it began has an outcome too, but no row in `authorizations`.
CREATE TABLE authorization_outcomes (
    -- Chosen at random by the client, so that no one else can guess it.
    listener            uuid        PRIMARY KEY,
    connect_session_pk  bigint      NOT NULL REFERENCES connect_sessions ON DELETE CASCADE,
    outcome             jsonb       NOT NULL,
    created_at          timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX authorization_outcomes_by_session ON authorization_outcomes (connect_session_pk);
