-- Payloads of models that ask for it are kept sealed. The keys lie on the control side, sealed themselves, so that
-- replacing a data key or an encryption key seals these few rows anew and never touches a record.
CREATE TABLE record_keys (
    environment_pk  bigint      NOT NULL REFERENCES environments ON DELETE CASCADE,
    number          integer     NOT NULL CHECK (number > 0),
    sealed_key      bytea       NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (environment_pk, number)
);
CALL declare_sealed(
    'record_keys', 'sealed_key',
    '(SELECT e.id FROM environments e WHERE e.pk = environment_pk) || ''/'' || number'
);

-- The key that the payload is sealed with and its hash was made with, also when the payload is emptied; none if both
-- are in clear. Rows in clear do not grow by these columns, which are null.
ALTER TABLE records ADD COLUMN payload_key integer;
ALTER TABLE records ADD COLUMN payload_ciphertext bytea;
-- There is nothing to compress in a ciphertext.
ALTER TABLE records ALTER COLUMN payload_ciphertext SET STORAGE EXTERNAL;

ALTER TABLE dead_letters ALTER COLUMN payload DROP NOT NULL;
ALTER TABLE dead_letters ADD COLUMN payload_key integer;
ALTER TABLE dead_letters ADD COLUMN payload_ciphertext bytea;
ALTER TABLE dead_letters ADD CONSTRAINT dead_letters_payload CHECK (num_nonnulls(payload, payload_ciphertext) = 1);
