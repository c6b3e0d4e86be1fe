-- What this database is used for: for everything, or as one half of a pair. A host that is started with databases that
-- do not belong together finds it here.
CREATE TABLE database_half (
    is_the_row      boolean     PRIMARY KEY DEFAULT true CHECK (is_the_row),
    half            text        NOT NULL CHECK (half IN ('both', 'control', 'records')),
    pair            uuid        NOT NULL,
    -- The other half knows of it too: none but that one is taken from now on.
    is_bound        boolean     NOT NULL
);
