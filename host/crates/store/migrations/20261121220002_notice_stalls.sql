-- Whether attempts at a sync come to anything. One that is interrupted before it has saved anything or moved its
-- checkpoint is idle; when several in a row are, trying again at once is of no use.
ALTER TABLE sync_states
    -- Of the attempts before the present one.
    ADD COLUMN idle_attempts    integer NOT NULL DEFAULT 0,
    -- The present one has neither changed anything nor come to an end by itself.
    ADD COLUMN is_idle          boolean NOT NULL DEFAULT false;
