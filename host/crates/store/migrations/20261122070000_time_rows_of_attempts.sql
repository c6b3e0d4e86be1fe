-- When the first of a row of attempts began, by the clock of the database that the records are in: their times are by it.
-- `counts_since` is by the other one's, if there are two, and says only which row it is.
ALTER TABLE sync_states ADD COLUMN row_began_at timestamptz;
