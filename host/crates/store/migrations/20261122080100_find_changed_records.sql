-- Readers who ask for what was updated or deleted find it among itself. What is added, which is most of what is written,
-- is not in this index.
CREATE INDEX records_by_action ON records (connection_pk, stream_no, last_action, position) WHERE last_action > 0;
