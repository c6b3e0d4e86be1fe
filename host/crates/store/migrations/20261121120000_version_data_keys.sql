-- An environment's data key has versions, so that it can be replaced while hosts work: what is new is sealed with
-- the active one, the others still open what they sealed. A sealed value names its version; what is sealed with one
-- refers to it, so that the database lets nobody remove a version that something needs, and takes no value that
-- nobody could open any more.
CREATE TABLE data_key_versions (
    environment_pk  bigint      NOT NULL REFERENCES environments ON DELETE CASCADE,
    version         integer     NOT NULL CHECK (version > 0),
    wrapped_key     bytea       NOT NULL,
    is_active       boolean     NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (environment_pk, version)
);
CREATE UNIQUE INDEX data_key_versions_active ON data_key_versions (environment_pk) WHERE is_active;
INSERT INTO data_key_versions (environment_pk, version, wrapped_key, is_active)
SELECT pk, 1, data_key, true FROM environments;
ALTER TABLE environments DROP COLUMN data_key;

-- What each host knows, while an environment has several versions: nothing is sealed with one before all of them
-- can open it.
CREATE TABLE data_key_hosts (
    environment_pk  bigint      NOT NULL REFERENCES environments ON DELETE CASCADE,
    host_id         uuid        NOT NULL REFERENCES hosts ON DELETE CASCADE,
    newest_version  integer     NOT NULL,
    active_version  integer     NOT NULL,
    PRIMARY KEY (environment_pk, host_id)
);

-- The ids of the encryption keys that a host was given, so that nothing is wrapped with one that it lacks.
ALTER TABLE hosts ADD COLUMN encryption_keys text[] NOT NULL DEFAULT '{}';

-- The version that a value is sealed with: bytes 1 to 4, but for values of the first format, which had only one.
CREATE FUNCTION data_key_version(sealed bytea) RETURNS integer
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$
        SELECT CASE WHEN length(sealed) > 4 AND get_byte(sealed, 0) = 2
            THEN get_byte(sealed, 1) << 24 | get_byte(sealed, 2) << 16 | get_byte(sealed, 3) << 8 | get_byte(sealed, 4)
            ELSE 1
        END
    $$;

-- The columns that hold sealed values. `row_name` is the SQL of what a value is bound to beside its column.
CREATE TABLE sealed_columns (
    table_name      name        NOT NULL,
    column_name     name        NOT NULL,
    row_name        text        NOT NULL,
    PRIMARY KEY (table_name, column_name)
);

-- Makes sealed values of a column refer to their data key, and lets rotation find them. The table has the column
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

CALL declare_sealed('integrations', 'sealed_credentials');
CALL declare_sealed('connections', 'sealed_credentials');
CALL declare_sealed('webhook_signing_keys', 'sealed_key');
CALL declare_sealed('authorizations', 'sealed_secrets');
CALL declare_sealed(
    'environment_variables', 'sealed_value',
    '(SELECT e.id FROM environments e WHERE e.pk = environment_pk) || ''/'' || name'
);
