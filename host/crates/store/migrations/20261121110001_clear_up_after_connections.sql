-- Connections that are gone and whose records are still there are claimed for a while by whoever removes the records.
ALTER TABLE deleted_connections ADD COLUMN purge_due_at timestamptz NOT NULL DEFAULT now();
CREATE INDEX deleted_connections_due ON deleted_connections (purge_due_at);

-- Connections for which nothing may be written any more: what runs for one that is deleted meanwhile finds it here.
-- Belongs to the tables of syncs' output and, as those, refers to no others.
CREATE TABLE closed_connections (
    connection_pk   bigint      PRIMARY KEY
);

-- Runs that are on when their connection is deleted are closed with it.
CREATE INDEX runs_running ON runs (connection_pk) WHERE state = 'running';

-- So that the deletion of a connection need not read all sessions.
CREATE INDEX connect_sessions_by_connection ON connect_sessions (reconnects_pk) WHERE reconnects_pk IS NOT NULL;
CREATE INDEX authorizations_by_session ON authorizations (connect_session_pk) WHERE connect_session_pk IS NOT NULL;
