-- An environment is the wall between tenants of one host: keys, integrations, connections and variables
-- belong to exactly one. Its data key is wrapped by the operator's master key, so that replacing the
-- master key concerns one row an environment.
CREATE TABLE environments (
    pk          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id          uuid        NOT NULL UNIQUE DEFAULT gen_random_uuid(),
    name        text        NOT NULL UNIQUE,
    data_key    bytea       NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now()
);

-- Facts about the whole installation, such as the fingerprint of the master key.
CREATE TABLE installation (
    name        text        PRIMARY KEY,
    value       text        NOT NULL
);

-- Secret keys, as SHA-256: the key itself is shown once and kept nowhere.
CREATE TABLE api_keys (
    pk              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    environment_pk  bigint      NOT NULL REFERENCES environments ON DELETE CASCADE,
    id              uuid        NOT NULL UNIQUE DEFAULT gen_random_uuid(),
    name            text        NOT NULL,
    prefix          text        NOT NULL,
    hash            bytea       NOT NULL,
    scopes          text[]      NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    last_used_at    timestamptz,
    revoked_at      timestamptz
);
CREATE UNIQUE INDEX api_keys_hash ON api_keys (hash) WHERE revoked_at IS NULL;
CREATE UNIQUE INDEX api_keys_name ON api_keys (environment_pk, name) WHERE revoked_at IS NULL;

-- Values are sealed with the environment's data key.
CREATE TABLE environment_variables (
    environment_pk  bigint      NOT NULL REFERENCES environments ON DELETE CASCADE,
    name            text        NOT NULL,
    sealed_value    bytea       NOT NULL,
    updated_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (environment_pk, name)
);
