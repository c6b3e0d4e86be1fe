-- What time does to records: payloads are emptied when they have not changed for long, and the records of a sync that
-- has not run for longer are deleted. What is due is found by these columns, without a look at records.

-- When the sync has begun to run last.
ALTER TABLE sync_states ADD COLUMN last_run_at timestamptz NOT NULL DEFAULT now();
CREATE INDEX sync_states_by_last_run ON sync_states (last_run_at);

-- Whose records these are; none if only other functions have saved here.
ALTER TABLE streams ADD COLUMN sync_name text;
-- No record at or before this position has a payload.
ALTER TABLE streams ADD COLUMN pruned_through bigint NOT NULL DEFAULT 0;
-- No payload behind it is older than this; none if there is none.
ALTER TABLE streams ADD COLUMN oldest_payload_at timestamptz;
UPDATE streams SET oldest_payload_at = '-infinity' WHERE total_count > 0;
CREATE INDEX streams_by_oldest_payload ON streams (oldest_payload_at) WHERE oldest_payload_at IS NOT NULL;
