-- A full sync that would have deleted too much is held: what it has seen is kept, so that what it has not seen can
-- still be deleted when somebody approves it. `held_fence` is the fence of that attempt. While it waits, its
-- generation and where that began are here; once it was approved, how many records were deleted.
ALTER TABLE streams
    ADD COLUMN held_fence       bigint,
    ADD COLUMN held_generation  bigint,
    ADD COLUMN held_start       bigint,
    ADD COLUMN held_deleted     bigint;
