-- What syncs keep. These tables commit together with a run's writes and refer to nothing else in the
-- database, so that they can live in another one, and all of them are keyed by the connection first, so that
-- they can be distributed by it.

-- Where a sync stands: its checkpoint, the fence of the attempt that may write, and what that attempt has
-- counted so far.
CREATE TABLE sync_states (
    connection_pk   bigint      NOT NULL,
    sync_name       text        NOT NULL,
    variant         text        NOT NULL,
    fence           bigint      NOT NULL,
    checkpoint      text,
    restores_pruned boolean     NOT NULL DEFAULT false,
    counts          jsonb       NOT NULL DEFAULT '{}',
    PRIMARY KEY (connection_pk, sync_name, variant)
);

-- All records of one model, connection and variant. A writer locks the row until it commits, so positions
-- become visible in order: a reader that follows cursors never misses a record.
CREATE TABLE streams (
    connection_pk       bigint      NOT NULL,
    stream_no           integer     NOT NULL,
    model               text        NOT NULL,
    variant             text        NOT NULL,
    last_position       bigint      NOT NULL DEFAULT 0,
    last_modified_at    timestamptz NOT NULL DEFAULT '-infinity',
    live_count          bigint      NOT NULL DEFAULT 0,
    total_count         bigint      NOT NULL DEFAULT 0,
    -- The full sync whose saves are being watched for deletions, and the last position before it began.
    generation          bigint,
    generation_start    bigint,
    PRIMARY KEY (connection_pk, stream_no),
    CONSTRAINT streams_model UNIQUE (connection_pk, model, variant)
);

CREATE TABLE records (
    connection_pk       bigint      NOT NULL,
    stream_no           integer     NOT NULL,
    last_action         smallint    NOT NULL CHECK (last_action IN (0, 1, 2)),
    position            bigint      NOT NULL,
    first_seen_at       timestamptz NOT NULL,
    last_modified_at    timestamptz NOT NULL,
    deleted_at          timestamptz,
    pruned_at           timestamptz,
    payload_hash        uuid        NOT NULL,
    external_id         text        COLLATE "C" NOT NULL,
    payload             text,
    PRIMARY KEY (connection_pk, stream_no, external_id),
    CONSTRAINT records_position UNIQUE (connection_pk, stream_no, position)
) PARTITION BY HASH (connection_pk);

DO $$
BEGIN
    -- Large payloads are compressed with lz4, which costs a writer much less time than the default.
    BEGIN
        ALTER TABLE records ALTER COLUMN payload SET COMPRESSION lz4;
    EXCEPTION WHEN feature_not_supported THEN
        RAISE NOTICE 'this server was built without lz4: large payloads take the default compression';
    END;
    FOR remainder IN 0..15 LOOP
        EXECUTE format(
            'CREATE TABLE records_%s PARTITION OF records FOR VALUES WITH (MODULUS 16, REMAINDER %s)',
            lpad(remainder::text, 2, '0'), remainder
        );
    END LOOP;
END
$$;

-- Which unchanged records a full sync has seen, as compressed bitmaps of their positions, one a commit.
-- Everything that it added or changed stands behind `streams.generation_start` and needs no mark, so
-- deletion tracking never rewrites a record.
CREATE TABLE seen_positions (
    connection_pk   bigint      NOT NULL,
    stream_no       integer     NOT NULL,
    generation      bigint      NOT NULL,
    part            bigint      NOT NULL,
    positions       bytea       NOT NULL,
    PRIMARY KEY (connection_pk, stream_no, generation, part)
);
