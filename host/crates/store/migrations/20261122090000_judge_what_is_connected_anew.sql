-- Set while functions of the integration judge a connection that was connected anew, and by which host. What a host has
-- left behind is judged again by another.
ALTER TABLE connections ADD COLUMN judging_since timestamptz, ADD COLUMN judging_host uuid;
CREATE INDEX connections_judging ON connections (judging_since) WHERE judging_since IS NOT NULL;
