-- Recordings of runs, with which authors reproduce failures on their own machines.

ALTER TABLE schedules
    -- Which runs to record. Null if none are recorded.
    ADD COLUMN recorded_runs    text    CHECK (recorded_runs IN ('next_failed_run', 'every_run')),
    -- For how many days their recordings are kept.
    ADD COLUMN recording_days   integer,
    ADD CONSTRAINT schedules_recording CHECK ((recorded_runs IS NULL) = (recording_days IS NULL));

CREATE TABLE recordings (
    run_id              uuid        PRIMARY KEY REFERENCES runs ON DELETE CASCADE,
    environment_pk      bigint      NOT NULL REFERENCES environments ON DELETE CASCADE,
    -- A recording contains data of the end user, so it is deleted with the connection.
    connection_pk       bigint      NOT NULL REFERENCES connections ON DELETE CASCADE,
    sealed_recording    bytea       NOT NULL,
    created_at          timestamptz NOT NULL DEFAULT now(),
    expires_at          timestamptz NOT NULL
);
CREATE INDEX recordings_by_environment ON recordings (environment_pk);
CREATE INDEX recordings_by_connection ON recordings (connection_pk);
CREATE INDEX recordings_by_expiry ON recordings (expires_at);
-- Sealed bytes cannot be compressed.
ALTER TABLE recordings ALTER COLUMN sealed_recording SET STORAGE EXTERNAL;
CALL declare_sealed('recordings', 'sealed_recording', 'run_id::text');
