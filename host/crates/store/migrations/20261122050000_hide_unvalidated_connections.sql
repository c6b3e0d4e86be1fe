-- A connection that is being validated is not there yet for anybody who looks for it.
CREATE OR REPLACE VIEW syncline_views.connections AS
SELECT e.name AS environment, i.unique_key AS integration, i.provider, c.connection_id, c.tags, c.created_at,
       c.updated_at
FROM connections c
JOIN integrations i ON i.pk = c.integration_pk
JOIN environments e ON e.pk = c.environment_pk
WHERE c.validating_since IS NULL;
