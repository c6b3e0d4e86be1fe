-- Indexes for lists of schedules: the newest integration first, and in it the newest schedule.

-- Replaces an index of the environment alone, so that claims do not write another index.
DROP INDEX schedules_by_environment;
CREATE INDEX schedules_by_environment ON schedules (environment_pk, integration_pk, pk);
-- Among a million schedules, the few that are paused or failing are found at once.
CREATE INDEX schedules_paused ON schedules (environment_pk, integration_pk, pk) WHERE state = 'paused';
CREATE INDEX schedules_failing ON schedules (environment_pk, integration_pk, pk) WHERE failures > 0;
