-- When a connection's credentials end, and who is renewing them. A refresh holds the lease, never a transaction,
-- while it waits for the provider; the version tells whoever waited whether it was done.
ALTER TABLE connections
    ADD COLUMN credentials_version      bigint      NOT NULL DEFAULT 1,
    ADD COLUMN credentials_expire_at    timestamptz,
    -- When the background looks at them next; null if they never need it.
    ADD COLUMN refresh_due_at           timestamptz,
    ADD COLUMN refresh_owner            uuid,
    ADD COLUMN refresh_leased_until     timestamptz,
    ADD COLUMN refresh_failed_at        timestamptz,
    -- Days on which refreshing failed, one after the other.
    ADD COLUMN refresh_failing_days     integer     NOT NULL DEFAULT 0,
    ADD COLUMN refresh_exhausted        boolean     NOT NULL DEFAULT false;
CREATE INDEX connections_refresh_due ON connections (refresh_due_at) WHERE refresh_due_at IS NOT NULL;
CREATE INDEX connections_by_end_user ON connections (environment_pk, (end_user->>'id'));

-- What is wrong with a connection now: its authentication, or one of its syncs. Gone when it works again.
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

-- Connections that are gone and whose records are still there: they go in small batches.
CREATE TABLE deleted_connections (
    connection_pk   bigint      PRIMARY KEY,
    deleted_at      timestamptz NOT NULL DEFAULT now()
);
