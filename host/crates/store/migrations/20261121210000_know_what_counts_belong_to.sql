-- The `unreported_since` of the schedule when `counts` were begun: of attempts in a row that did not succeed, all count
-- together. An attempt that was lost before it began has not emptied them, so its successor cannot go by whether there
-- was an attempt before it.
ALTER TABLE sync_states ADD COLUMN counts_since timestamptz;
