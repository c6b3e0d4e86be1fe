-- A variant that is being deleted is retired first: nobody can ask for a run of it, or claim one, while its records go.
-- One that its host did not come to the end of is found here by the others.
ALTER TABLE schedules ADD COLUMN retired_at timestamptz;
CREATE INDEX schedules_retired ON schedules (retired_at) WHERE retired_at IS NOT NULL;
