-- What a full sync has not seen again is measured against what was there when it began: else records that it adds would
-- make room for deletions that nobody has approved.
ALTER TABLE streams ADD COLUMN generation_live bigint;
