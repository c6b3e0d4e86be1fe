-- Connections, and the tables that find, report on and remove them.

-- One end user's link to a provider through an integration. `environment_pk` repeats the integration's, so that lists
-- need no join. Sealed values are bound to the row by `id`.
CREATE TABLE connections (
    pk                      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id                      uuid        NOT NULL UNIQUE,
    environment_pk          bigint      NOT NULL REFERENCES environments ON DELETE CASCADE,
    integration_pk          bigint      NOT NULL REFERENCES integrations ON DELETE CASCADE,
    connection_id           text        NOT NULL,
    connection_config       jsonb       NOT NULL DEFAULT '{}',
    metadata                jsonb,
    tags                    jsonb       NOT NULL DEFAULT '{}',
    end_user                jsonb,
    webhook_url_override    text,
    created_at              timestamptz NOT NULL DEFAULT now(),
    updated_at              timestamptz NOT NULL DEFAULT now(),
    last_fetched_at         timestamptz,

    sealed_credentials      bytea       NOT NULL,
    -- Grows with each change of the credentials. A host that waited for another host's refresh sees by it that the
    -- refresh succeeded.
    credentials_version     bigint      NOT NULL DEFAULT 1,
    -- When the credentials were last obtained or imported. If a provider rejects credentials that are fresh,
    -- refreshing them would not help.
    credentials_changed_at  timestamptz NOT NULL DEFAULT now(),
    credentials_expire_at   timestamptz,

    -- When the background task refreshes the credentials next; null if they never need it.
    refresh_due_at          timestamptz,
    -- A refresh holds this lease, and no transaction, while it waits for the provider.
    refresh_owner           uuid,
    refresh_leased_until    timestamptz,
    refresh_failed_at       timestamptz,
    -- The number of consecutive days on which a refresh failed, and when a day was last added.
    refresh_failing_days    integer     NOT NULL DEFAULT 0,
    refresh_day_counted_at  timestamptz,
    -- Whether the background task has given up after too many such days.
    refresh_exhausted       boolean     NOT NULL DEFAULT false,

    -- Set while functions of the integration validate a new connection. Clients do not see the connection yet. If the
    -- host is lost meanwhile, another host removes the connection.
    validating_since        timestamptz,
    -- Set while functions of the integration validate a connection again after a reconnect, and by which host. If that
    -- host is lost meanwhile, another host repeats the validation.
    revalidating_since      timestamptz,
    revalidating_host       uuid,
    CONSTRAINT connections_connection_id UNIQUE (integration_pk, connection_id)
);
CALL declare_sealed('connections', 'sealed_credentials');
CREATE INDEX connections_by_age ON connections (environment_pk, created_at DESC, pk DESC);
CREATE INDEX connections_by_id ON connections (environment_pk, connection_id);
-- An end user is identified by the connection's `end_user`. If that is null, the connection's tags identify the end
-- user.
CREATE INDEX connections_by_end_user ON connections (environment_pk, (end_user->>'id'));
CREATE INDEX connections_by_end_user_tag ON connections (environment_pk, (tags->>'end_user_id'));
CREATE INDEX connections_refresh_due ON connections (refresh_due_at) WHERE refresh_due_at IS NOT NULL;
CREATE INDEX connections_validating ON connections (validating_since) WHERE validating_since IS NOT NULL;
CREATE INDEX connections_revalidating ON connections (revalidating_since) WHERE revalidating_since IS NOT NULL;

-- The values by which an inbound webhook can identify a connection: the connection id, and the strings and numbers of
-- its configuration, metadata and tags. A trigger keeps the table up to date. An index over the JSON documents would
-- not suffice: Postgres reads it only with a bitmap scan, which the host's sessions disable so that plans do not
-- depend on statistics.
CREATE TABLE connection_identifiers (
    integration_pk  bigint      NOT NULL,
    name            text        NOT NULL,
    value           text        NOT NULL,
    connection_pk   bigint      NOT NULL REFERENCES connections ON DELETE CASCADE,
    PRIMARY KEY (integration_pk, name, value, connection_pk)
);
CREATE INDEX connection_identifiers_by_connection ON connection_identifiers (connection_pk);

CREATE FUNCTION connection_identifiers_of(connection_id text, connection_config jsonb, metadata jsonb, tags jsonb)
    RETURNS TABLE (name text, value text)
LANGUAGE sql IMMUTABLE AS $$
    SELECT 'connection_id', connection_id
    UNION ALL
    SELECT document.prefix || member.key, member.value #>> '{}'
    FROM (VALUES ('connection_config.', connection_config), ('metadata.', metadata), ('tags.', tags))
        AS document (prefix, value)
    CROSS JOIN LATERAL jsonb_each(CASE WHEN jsonb_typeof(document.value) = 'object' THEN document.value END)
        AS member (key, value)
    WHERE jsonb_typeof(member.value) IN ('string', 'number')
      AND octet_length(member.key) <= 255 AND octet_length(member.value #>> '{}') BETWEEN 1 AND 512
$$;

CREATE FUNCTION update_connection_identifiers() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        DELETE FROM connection_identifiers i
        WHERE i.connection_pk = NEW.pk
          AND NOT EXISTS (
              SELECT
              FROM connection_identifiers_of(NEW.connection_id, NEW.connection_config, NEW.metadata, NEW.tags) AS kept
              WHERE kept.name = i.name AND kept.value = i.value
          );
    END IF;
    INSERT INTO connection_identifiers (integration_pk, name, value, connection_pk)
    SELECT NEW.integration_pk, made.name, made.value, NEW.pk
    FROM connection_identifiers_of(NEW.connection_id, NEW.connection_config, NEW.metadata, NEW.tags) AS made
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;

CREATE TRIGGER connections_update_identifiers
    AFTER INSERT OR UPDATE OF connection_id, connection_config, metadata, tags ON connections
    FOR EACH ROW EXECUTE FUNCTION update_connection_identifiers();

-- The current errors of a connection: of its authentication, or of one of its syncs. A row is removed when the
-- authentication or the sync works again.
CREATE TABLE connection_errors (
    connection_pk   bigint      NOT NULL REFERENCES connections ON DELETE CASCADE,
    type            text        NOT NULL CHECK (type IN ('auth', 'sync')),
    -- The sync and its variant; empty for authentication.
    subject         text        NOT NULL,
    log_id          uuid        NOT NULL,
    code            text        NOT NULL,
    message         text        NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (connection_pk, type, subject)
);

-- Deleted connections whose records still exist. A host claims one by setting `purge_due_at` to a later time, and
-- deletes the records in small batches.
CREATE TABLE deleted_connections (
    connection_pk   bigint      PRIMARY KEY,
    deleted_at      timestamptz NOT NULL DEFAULT now(),
    purge_due_at    timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX deleted_connections_due ON deleted_connections (purge_due_at);
