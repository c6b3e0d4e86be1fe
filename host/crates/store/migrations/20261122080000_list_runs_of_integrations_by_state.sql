-- Runs of an integration are listed state by state, as those of an environment are: one that failed is found at once
-- among a million that succeeded.
CREATE INDEX runs_of_integration_by_state ON runs (integration_pk, state, started_at DESC, id DESC);
DROP INDEX runs_of_integration;
