-- Records that do not fit their model, where its author wants them set aside instead of failing the batch. They lie
-- beside the records, since they are written with them. A record that comes again takes the place of its letter: the
-- key is its id or, if that is what is wrong, a hash of its text.
CREATE TABLE dead_letters (
    connection_pk   bigint      NOT NULL,
    stream_no       integer     NOT NULL,
    letter_key      text        COLLATE "C" NOT NULL,
    number          bigint      GENERATED ALWAYS AS IDENTITY,
    id              uuid        NOT NULL UNIQUE DEFAULT gen_random_uuid(),
    environment_pk  bigint      NOT NULL,
    integration_pk  bigint      NOT NULL,
    external_id     text        COLLATE "C",
    function_name   text        NOT NULL,
    run_id          text        NOT NULL,
    problems        jsonb       NOT NULL,
    payload         text        NOT NULL,
    -- The last one of the stream when it was set aside: what stands behind it is newer.
    position        bigint      NOT NULL,
    times           bigint      NOT NULL DEFAULT 1,
    first_seen_at   timestamptz NOT NULL,
    last_seen_at    timestamptz NOT NULL,
    PRIMARY KEY (connection_pk, stream_no, letter_key)
);
CREATE INDEX dead_letters_by_environment ON dead_letters (environment_pk, number);
CREATE INDEX dead_letters_by_connection ON dead_letters (connection_pk, number);
CREATE INDEX dead_letters_by_age ON dead_letters (last_seen_at);

-- How many a stream has: one that has none is written to without a look for them.
ALTER TABLE streams ADD COLUMN dead_letters bigint NOT NULL DEFAULT 0;
