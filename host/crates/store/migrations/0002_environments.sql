-- Environments, and the keys and variables that belong to one.

-- An environment separates the tenants of an installation: API keys, integrations, connections and variables belong to
-- exactly one environment.
CREATE TABLE environments (
    pk                          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id                          uuid        NOT NULL UNIQUE DEFAULT gen_random_uuid(),
    name                        text        NOT NULL UNIQUE,
    -- Webhook URLs may contain secrets and are never logged.
    webhook_url                 text,
    webhook_url_secondary       text,
    callback_url                text,
    -- Which events are sent to the webhook URLs.
    on_auth_creation            boolean     NOT NULL DEFAULT true,
    on_auth_refresh_error       boolean     NOT NULL DEFAULT true,
    on_sync_completion_always   boolean     NOT NULL DEFAULT true,
    on_sync_error               boolean     NOT NULL DEFAULT true,
    on_async_action_completion  boolean     NOT NULL DEFAULT true,
    connect_ui_title            text,
    connect_ui_primary_color    text,
    created_at                  timestamptz NOT NULL DEFAULT now(),
    updated_at                  timestamptz NOT NULL DEFAULT now()
);

-- The secret keys of API clients. Only the SHA-256 of a key is stored; the key itself is shown once, when it is
-- created.
CREATE TABLE api_keys (
    pk              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    environment_pk  bigint      NOT NULL REFERENCES environments ON DELETE CASCADE,
    id              uuid        NOT NULL UNIQUE DEFAULT gen_random_uuid(),
    name            text        NOT NULL,
    -- The first characters of the key, by which a person recognizes it in a list.
    prefix          text        NOT NULL,
    hash            bytea       NOT NULL,
    scopes          text[]      NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    last_used_at    timestamptz,
    revoked_at      timestamptz
);
CREATE UNIQUE INDEX api_keys_hash ON api_keys (hash) WHERE revoked_at IS NULL;
-- The name of a revoked key can be used again.
CREATE UNIQUE INDEX api_keys_name ON api_keys (environment_pk, name) WHERE revoked_at IS NULL;
CREATE INDEX api_keys_by_environment ON api_keys (environment_pk);

-- The data keys that seal an environment's secrets. A data key has versions, so that it can be replaced while hosts
-- run: new values are sealed with the active version, and the other versions still open the values sealed with them.
-- Each version is wrapped with the operator's encryption key, so replacing that key rewrites a few rows of this table
-- only.
--
-- Every sealed value refers to its version by a foreign key (see `declare_sealed`). Postgres therefore refuses to
-- remove a version that is still used, and refuses a value that no key could open.
CREATE TABLE data_key_versions (
    environment_pk  bigint      NOT NULL REFERENCES environments ON DELETE CASCADE,
    version         integer     NOT NULL CHECK (version > 0),
    wrapped_key     bytea       NOT NULL,
    is_active       boolean     NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (environment_pk, version)
);
CREATE UNIQUE INDEX data_key_versions_active ON data_key_versions (environment_pk) WHERE is_active;

-- The data key versions that each host has loaded, while an environment has more than one. A version becomes active
-- only after all hosts can open values sealed with it.
CREATE TABLE data_key_hosts (
    environment_pk  bigint      NOT NULL REFERENCES environments ON DELETE CASCADE,
    host_id         uuid        NOT NULL REFERENCES hosts ON DELETE CASCADE,
    newest_version  integer     NOT NULL,
    active_version  integer     NOT NULL,
    PRIMARY KEY (environment_pk, host_id)
);
CREATE INDEX data_key_hosts_by_host ON data_key_hosts (host_id);

-- The data key version of a sealed value. Format 2 stores it in bytes 1 to 4; values of format 1 have version 1.
CREATE FUNCTION data_key_version(sealed bytea) RETURNS integer
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$
        SELECT CASE WHEN length(sealed) > 4 AND get_byte(sealed, 0) = 2
            THEN get_byte(sealed, 1) << 24 | get_byte(sealed, 2) << 16 | get_byte(sealed, 3) << 8 | get_byte(sealed, 4)
            ELSE 1
        END
    $$;

-- All columns that hold sealed values, for the rotation of data keys. A sealed value is bound to its column and its
-- row: `row_name` is the SQL expression of the row's name.
CREATE TABLE sealed_columns (
    table_name      name        NOT NULL,
    column_name     name        NOT NULL,
    row_name        text        NOT NULL,
    PRIMARY KEY (table_name, column_name)
);

-- Registers a column of sealed values, and adds a generated column with the data key version of each value, a foreign
-- key to that version, and an index by which rotation finds the values to seal again. The table needs a column
-- `environment_pk`.
CREATE PROCEDURE declare_sealed(table_name name, column_name name, row_name text DEFAULT 'id::text')
    LANGUAGE plpgsql
    AS $$
    BEGIN
        EXECUTE format(
            'ALTER TABLE %1$I ADD COLUMN %2$I integer GENERATED ALWAYS AS (data_key_version(%3$I)) STORED',
            table_name, column_name || '_version', column_name
        );
        EXECUTE format(
            'ALTER TABLE %1$I ADD CONSTRAINT %2$I FOREIGN KEY (environment_pk, %3$I) REFERENCES data_key_versions',
            table_name, table_name || '_' || column_name || '_version', column_name || '_version'
        );
        EXECUTE format(
            'CREATE INDEX %1$I ON %2$I (environment_pk, %3$I) WHERE %3$I IS NOT NULL',
            table_name || '_by_' || column_name || '_version', table_name, column_name || '_version'
        );
        INSERT INTO sealed_columns VALUES (table_name, column_name, row_name);
    END
    $$;

-- Variables that the functions of an environment can read.
CREATE TABLE environment_variables (
    environment_pk  bigint      NOT NULL REFERENCES environments ON DELETE CASCADE,
    name            text        NOT NULL,
    sealed_value    bytea       NOT NULL,
    updated_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (environment_pk, name)
);
CALL declare_sealed(
    'environment_variables', 'sealed_value',
    '(SELECT e.id FROM environments e WHERE e.pk = environment_pk) || ''/'' || name'
);

-- The keys that sign an environment's outbound webhooks. During a rotation every key signs, the newest first.
CREATE TABLE outbound_webhook_signing_keys (
    pk              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    environment_pk  bigint      NOT NULL REFERENCES environments ON DELETE CASCADE,
    id              uuid        NOT NULL UNIQUE,
    sealed_key      bytea       NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    expires_at      timestamptz
);
CREATE INDEX outbound_webhook_signing_keys_by_environment
    ON outbound_webhook_signing_keys (environment_pk, created_at DESC);
CALL declare_sealed('outbound_webhook_signing_keys', 'sealed_key');

-- The keys that encrypt the payloads of models with encrypted records. They are in the control database and are sealed
-- themselves: replacing a data key or an encryption key rewrites these few rows and no record.
CREATE TABLE record_keys (
    environment_pk  bigint      NOT NULL REFERENCES environments ON DELETE CASCADE,
    number          integer     NOT NULL CHECK (number > 0),
    sealed_key      bytea       NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (environment_pk, number)
);
CALL declare_sealed(
    'record_keys', 'sealed_key',
    '(SELECT e.id FROM environments e WHERE e.pk = environment_pk) || ''/'' || number'
);
