-- By what a webhook can name a connection: its id, and the texts and numbers of its configuration, metadata and tags.
-- A table and not an index over the documents: that would be read by a bitmap scan, and plans must not depend on
-- statistics.
CREATE TABLE connection_subjects (
    integration_pk  bigint      NOT NULL,
    name            text        NOT NULL,
    value           text        NOT NULL,
    connection_pk   bigint      NOT NULL REFERENCES connections ON DELETE CASCADE,
    PRIMARY KEY (integration_pk, name, value, connection_pk)
);
CREATE INDEX connection_subjects_by_connection ON connection_subjects (connection_pk);

CREATE FUNCTION subjects_of(connection_id text, connection_config jsonb, metadata jsonb, tags jsonb)
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

CREATE FUNCTION note_subjects() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        DELETE FROM connection_subjects s
        WHERE s.connection_pk = NEW.pk
          AND NOT EXISTS (
              SELECT FROM subjects_of(NEW.connection_id, NEW.connection_config, NEW.metadata, NEW.tags) AS kept
              WHERE kept.name = s.name AND kept.value = s.value
          );
    END IF;
    INSERT INTO connection_subjects (integration_pk, name, value, connection_pk)
    SELECT NEW.integration_pk, made.name, made.value, NEW.pk
    FROM subjects_of(NEW.connection_id, NEW.connection_config, NEW.metadata, NEW.tags) AS made
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;

CREATE TRIGGER connections_note_subjects
    AFTER INSERT OR UPDATE OF connection_id, connection_config, metadata, tags ON connections
    FOR EACH ROW EXECUTE FUNCTION note_subjects();

INSERT INTO connection_subjects (integration_pk, name, value, connection_pk)
SELECT c.integration_pk, made.name, made.value, c.pk
FROM connections c CROSS JOIN LATERAL subjects_of(c.connection_id, c.connection_config, c.metadata, c.tags) AS made;
