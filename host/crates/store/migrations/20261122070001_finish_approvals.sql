-- Runs whose deletions somebody has approved and that were not noted as approved yet. Another host finishes what one has
-- begun that is lost in between: the records may be gone already, and nobody be told of it.
CREATE TABLE approvals_under_way (
    run_id  uuid PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE,
    since   timestamptz NOT NULL DEFAULT now()
);
