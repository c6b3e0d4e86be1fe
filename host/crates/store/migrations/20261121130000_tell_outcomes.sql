-- What came of an end user's way to a provider and back, for whoever waits for it on any host: a web socket, or a
-- page that asks. Also of a way that was refused before it began, so this cannot be part of the authorization.
CREATE TABLE authorization_outcomes (
    -- Chosen by whoever waits; nobody can guess it.
    listener            uuid        PRIMARY KEY,
    connect_session_pk  bigint      NOT NULL REFERENCES connect_sessions ON DELETE CASCADE,
    outcome             jsonb       NOT NULL,
    created_at          timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX authorization_outcomes_by_session ON authorization_outcomes (connect_session_pk);
DROP INDEX authorizations_by_listener;
-- A new connection gets its id when it is stored, and every authorization belongs to a session.
ALTER TABLE authorizations
    DROP COLUMN outcome,
    DROP COLUMN connection_id,
    ALTER COLUMN connect_session_pk SET NOT NULL;
