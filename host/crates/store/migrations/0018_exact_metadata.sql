-- Metadata as the client wrote it: `json` keeps the text of numbers and the order of members, which `jsonb` does not.

DROP TRIGGER connections_update_identifiers ON connections;
DROP FUNCTION connection_identifiers_of(text, jsonb, jsonb, jsonb);
ALTER TABLE connections ALTER COLUMN metadata TYPE json USING metadata::json;

CREATE FUNCTION connection_identifiers_of(connection_id text, connection_config jsonb, metadata json, tags jsonb)
    RETURNS TABLE (name text, value text)
LANGUAGE sql IMMUTABLE AS $$
    SELECT 'connection_id', connection_id
    UNION ALL
    SELECT document.prefix || member.key, member.value #>> '{}'
    FROM (VALUES ('connection_config.', connection_config), ('tags.', tags)) AS document (prefix, value)
    CROSS JOIN LATERAL jsonb_each(CASE WHEN jsonb_typeof(document.value) = 'object' THEN document.value END)
        AS member (key, value)
    WHERE jsonb_typeof(member.value) IN ('string', 'number')
      AND octet_length(member.key) <= 255 AND octet_length(member.value #>> '{}') BETWEEN 1 AND 512
    UNION ALL
    SELECT 'metadata.' || member.key, member.value #>> '{}'
    FROM json_each(CASE WHEN json_typeof(metadata) = 'object' THEN metadata END) AS member (key, value)
    WHERE json_typeof(member.value) IN ('string', 'number')
      AND octet_length(member.key) <= 255 AND octet_length(member.value #>> '{}') BETWEEN 1 AND 512
$$;

CREATE TRIGGER connections_update_identifiers
    AFTER INSERT OR UPDATE OF connection_id, connection_config, metadata, tags ON connections
    FOR EACH ROW EXECUTE FUNCTION update_connection_identifiers();
