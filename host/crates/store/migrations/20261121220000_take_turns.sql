-- Claims take turns between integrations, so what waits is found by integration: the first entry of each is its
-- longest due schedule, and one that has a million costs as much to look at as one that has ten.
ALTER TABLE schedules
    -- Due, while its connection has as many runs on as it may have at once. The end of one of them lets it go on.
    ADD COLUMN is_parked boolean NOT NULL DEFAULT false,
    -- Nobody looks a schedule up by its random id, and every claim would write to another page of that index.
    DROP CONSTRAINT schedules_id_key;
CREATE INDEX schedules_waiting ON schedules (integration_pk, due_at)
    WHERE run_id IS NULL AND due_at IS NOT NULL AND NOT is_parked;
CREATE INDEX schedules_parked ON schedules (connection_pk, due_at) WHERE is_parked;
CREATE INDEX schedules_on ON schedules (integration_pk, connection_pk) WHERE run_id IS NOT NULL;
DROP INDEX schedules_due;
-- Without it the renewal of a lease changes no index, and a row that has room beside it stays where it is.
DROP INDEX schedules_leased;
ALTER TABLE schedules SET (
    fillfactor = 80,
    -- Every run leaves two dead rows, and what is due is looked for among them.
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0
);
