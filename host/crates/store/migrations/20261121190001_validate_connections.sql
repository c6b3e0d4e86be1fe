-- Set while functions of the integration validate a new connection. One whose host was lost meanwhile is removed.
ALTER TABLE connections ADD COLUMN validating_since timestamptz;
CREATE INDEX connections_validating ON connections (validating_since) WHERE validating_since IS NOT NULL;
