-- Since when what a sync has saved was not told as a success: the start of the first attempt after the last success.
-- A webhook of success covers all of it, so a client that reads what it is told of misses nothing that a lost or
-- failed attempt had saved.
ALTER TABLE schedules ADD COLUMN unreported_since timestamptz;
