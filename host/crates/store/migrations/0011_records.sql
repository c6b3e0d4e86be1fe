-- The output of syncs. These tables are written in the transactions of runs and can be in a separate database, the
-- records database. Therefore they refer to no other table. Each of them starts its keys with the connection, so that
-- a distributed Postgres can distribute them by it; a unique constraint always includes the connection.

-- The progress of one sync of one connection and variant.
CREATE TABLE sync_states (
    connection_pk               bigint      NOT NULL,
    sync_name                   text        NOT NULL,
    variant                     text        NOT NULL,
    -- The fencing token of the attempt that may write.
    fence                       bigint      NOT NULL,
    checkpoint                  text,
    -- Whether saving an unchanged record restores its pruned payload: from a reset until a run completes.
    restores_pruned             boolean     NOT NULL DEFAULT false,

    -- What a series of attempts has saved together. The series starts after the last reported success.
    counts                      jsonb       NOT NULL DEFAULT '{}',
    -- The `unreported_since` of the schedule, a time of the control database's clock. It only identifies the series:
    -- an attempt that was lost before it began has not reset `counts`, so its successor compares this value.
    unreported_since            timestamptz,
    -- When the first attempt of the series began, by the clock of the database with the records.
    first_attempt_at            timestamptz,

    -- Stall detection: the earlier attempts in a row that saved nothing and did not move the checkpoint, and whether
    -- the present attempt has made no progress so far. After several such attempts the sync fails with `no_progress`.
    attempts_without_progress   integer     NOT NULL DEFAULT 0,
    lacks_progress              boolean     NOT NULL DEFAULT false,

    -- For syncs with `full_every`: whether a full run has begun and not completed, and when the last one completed.
    full_in_progress            boolean     NOT NULL DEFAULT false,
    last_full_at                timestamptz,

    -- When the sync last ran. Retention deletes the records of syncs that have not run for long. The column is
    -- indexed, so runs update it at most once an hour.
    last_run_at                 timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (connection_pk, sync_name, variant)
);
CREATE INDEX sync_states_by_last_run ON sync_states (last_run_at);

-- All records of one model, connection and variant. A writer locks the row until it commits, so positions become
-- visible in order: a reader that follows cursors never misses a record.
CREATE TABLE streams (
    connection_pk       bigint      NOT NULL,
    stream_no           integer     NOT NULL,
    model               text        NOT NULL,
    variant             text        NOT NULL,
    -- The sync that saves the records; null if only other functions have saved some.
    sync_name           text,
    last_position       bigint      NOT NULL DEFAULT 0,
    last_modified_at    timestamptz NOT NULL DEFAULT '-infinity',
    live_count          bigint      NOT NULL DEFAULT 0,
    total_count         bigint      NOT NULL DEFAULT 0,
    -- The number of dead letters. If it is 0, a writer does not have to look for any.
    dead_letters        bigint      NOT NULL DEFAULT 0,

    -- The full sync in progress that tracks deletions: its number, the last position before it began, and the number
    -- of live records at that time. Deletions are compared with that number, because records that the sync adds must
    -- not make room for more unapproved deletions.
    generation          bigint,
    generation_start    bigint,
    generation_live     bigint,

    -- A full sync that would have deleted too many records is held: the positions that it has seen are kept, so that a
    -- client can still approve the deletions. `held_fence` is the fencing token of that attempt. While it waits for
    -- the approval, its generation and start are here; after the approval, the number of deleted records and the
    -- position before them.
    held_fence          bigint,
    held_generation     bigint,
    held_start          bigint,
    held_deleted        bigint,

    -- No record at or before this position has a payload.
    pruned_through      bigint      NOT NULL DEFAULT 0,
    -- A lower bound for the age of the payloads after that position; null if no payload is left. Retention finds the
    -- streams with old payloads by it without reading records.
    oldest_payload_at   timestamptz,
    PRIMARY KEY (connection_pk, stream_no),
    CONSTRAINT streams_model UNIQUE (connection_pk, model, variant)
);
CREATE INDEX streams_by_oldest_payload ON streams (oldest_payload_at) WHERE oldest_payload_at IS NOT NULL;

-- Saved records.
CREATE TABLE records (
    connection_pk       bigint      NOT NULL,
    stream_no           integer     NOT NULL,
    -- 0 added, 1 updated, 2 deleted.
    last_action         smallint    NOT NULL CHECK (last_action IN (0, 1, 2)),
    position            bigint      NOT NULL,
    first_seen_at       timestamptz NOT NULL,
    last_modified_at    timestamptz NOT NULL,
    deleted_at          timestamptz,
    pruned_at           timestamptz,
    payload_hash        uuid        NOT NULL,
    external_id         text        COLLATE "C" NOT NULL,
    payload             text,
    -- Only for encrypted records: the number of the record key that encrypted the payload and keyed its hash, which
    -- stays when the payload is pruned, and the encrypted payload. Null columns take no space.
    payload_key         integer,
    payload_ciphertext  bytea,
    PRIMARY KEY (connection_pk, stream_no, external_id),
    CONSTRAINT records_position UNIQUE (connection_pk, stream_no, position)
) PARTITION BY HASH (connection_pk);
-- Ciphertext does not compress.
ALTER TABLE records ALTER COLUMN payload_ciphertext SET STORAGE EXTERNAL;

DO $$
BEGIN
    -- Large payloads are compressed with lz4, which costs a writer much less time than the default.
    BEGIN
        ALTER TABLE records ALTER COLUMN payload SET COMPRESSION lz4;
    EXCEPTION WHEN feature_not_supported THEN
        RAISE NOTICE 'this server was built without lz4: large payloads use the default compression';
    END;
    FOR remainder IN 0..15 LOOP
        EXECUTE format(
            'CREATE TABLE records_%s PARTITION OF records FOR VALUES WITH (MODULUS 16, REMAINDER %s)',
            lpad(remainder::text, 2, '0'), remainder
        );
    END LOOP;
END
$$;

-- For readers that ask for updated or deleted records only. Most records are added once and never appear in this
-- index.
CREATE INDEX records_by_action ON records (connection_pk, stream_no, last_action, position) WHERE last_action > 0;

-- The unchanged records that a full sync has seen, as compressed bitmaps of their positions, one for each commit.
-- Records that the sync has added or changed have positions after `streams.generation_start` and need no mark.
-- Tracking deletions therefore never rewrites a record.
CREATE TABLE seen_positions (
    connection_pk   bigint      NOT NULL,
    stream_no       integer     NOT NULL,
    generation      bigint      NOT NULL,
    part            bigint      NOT NULL,
    positions       bytea       NOT NULL,
    PRIMARY KEY (connection_pk, stream_no, generation, part)
);

-- Records that do not match their model, if its author has chosen to set them aside instead of failing the batch. They
-- are written in the same transaction as the valid records.
CREATE TABLE dead_letters (
    connection_pk       bigint      NOT NULL,
    stream_no           integer     NOT NULL,
    -- The record's id or, if the id itself is invalid, a hash of the record's text. If the record arrives again, it
    -- replaces its dead letter.
    letter_key          text        COLLATE "C" NOT NULL,
    number              bigint      GENERATED ALWAYS AS IDENTITY,
    id                  uuid        NOT NULL DEFAULT gen_random_uuid(),
    environment_pk      bigint      NOT NULL,
    integration_pk      bigint      NOT NULL,
    external_id         text        COLLATE "C",
    function_name       text        NOT NULL,
    run_id              text        NOT NULL,
    problems            jsonb       NOT NULL,
    payload             text,
    payload_key         integer,
    payload_ciphertext  bytea,
    -- The stream's last position when the record was set aside. Records with a later position are newer.
    position            bigint      NOT NULL,
    -- How often the record has arrived.
    times               bigint      NOT NULL DEFAULT 1,
    first_seen_at       timestamptz NOT NULL,
    last_seen_at        timestamptz NOT NULL,
    PRIMARY KEY (connection_pk, stream_no, letter_key),
    CONSTRAINT dead_letters_payload CHECK (num_nonnulls(payload, payload_ciphertext) = 1)
);
CREATE INDEX dead_letters_by_environment ON dead_letters (environment_pk, number);
CREATE INDEX dead_letters_by_connection ON dead_letters (connection_pk, number);
CREATE INDEX dead_letters_by_age ON dead_letters (last_seen_at);
-- Clients look up a dead letter without its connection. The ids are random. A unique constraint would have to include
-- the connection, so there is none.
CREATE INDEX dead_letters_by_id ON dead_letters (id);

-- Deleted connections for which nothing may be written any more. A run in progress finds its connection here.
CREATE TABLE closed_connections (
    connection_pk   bigint      PRIMARY KEY
);
