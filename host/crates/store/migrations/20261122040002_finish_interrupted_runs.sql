-- What is due is the rest of a run that was lost with its host or handed back: a pause lets it complete.
ALTER TABLE schedules ADD COLUMN is_interrupted boolean NOT NULL DEFAULT false;
