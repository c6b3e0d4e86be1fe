-- Facts about the whole installation: its databases and its hosts.

-- Named facts, such as the fingerprint of the encryption key that the installation was set up with.
CREATE TABLE installation (
    name    text    PRIMARY KEY,
    value   text    NOT NULL
);

-- What this database is used for: for everything, or as the control or the records database of a pair. A host that is
-- started with two databases that do not belong together finds out here. The table has at most one row.
CREATE TABLE database_role (
    is_singleton    boolean     PRIMARY KEY DEFAULT true CHECK (is_singleton),
    role            text        NOT NULL CHECK (role IN ('both', 'control', 'records')),
    -- The same in both databases of a pair.
    pair_id         uuid        NOT NULL,
    -- Whether the other database has stored the pair too. From then on, only that database is accepted.
    is_confirmed    boolean     NOT NULL
);

-- The hosts that are running. Each writes a heartbeat.
CREATE TABLE hosts (
    id                  uuid        PRIMARY KEY,
    version             text        NOT NULL,
    started_at          timestamptz NOT NULL DEFAULT now(),
    last_heartbeat_at   timestamptz NOT NULL DEFAULT now(),
    -- The ids of the encryption keys that the host has. A data key is only wrapped with a key that all hosts have.
    encryption_keys     text[]      NOT NULL DEFAULT '{}'
);
