-- Whatever is unique in the half of records is so within its connection, which the half may be distributed by. The ids of
-- letters are drawn at random, and one is looked for without its connection.
ALTER TABLE dead_letters DROP CONSTRAINT dead_letters_id_key;
CREATE INDEX dead_letters_by_id ON dead_letters (id);
