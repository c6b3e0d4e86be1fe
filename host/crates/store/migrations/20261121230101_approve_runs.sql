-- When the deletions were approved that the run had held back.
ALTER TABLE runs ADD COLUMN approved_at timestamptz;
