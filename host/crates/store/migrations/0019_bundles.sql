-- Earlier versions of bundles can be deployed again, and deployments can require signatures.

-- The content of each deployed bundle, from which its file can be written again.
CREATE TABLE bundles (
    -- SHA-256 of the file, as hexadecimal digits.
    digest      text        PRIMARY KEY,
    -- The text of syncline.toml.
    config      text        NOT NULL,
    -- The texts of the schema files, by path.
    schemas     jsonb       NOT NULL,
    -- The digests of the components, by path. Their bytes are in `components`.
    components  jsonb       NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now()
);

-- The minisign public keys that an environment trusts. If there is one, every bundle must be signed with one of them.
CREATE TABLE bundle_keys (
    environment_pk  bigint      NOT NULL REFERENCES environments ON DELETE CASCADE,
    name            text        NOT NULL,
    -- As base64, like the second line of a `.pub` file.
    public_key      text        NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (environment_pk, name)
);

ALTER TABLE deployments
    -- The minisign signature of the bundle's file, if the deployment had one.
    ADD COLUMN signature        text,
    -- The name of the key that signed it, at the time of the deployment.
    ADD COLUMN signed_by        text,
    -- The earlier version of the bundle that this deployment restored.
    ADD COLUMN restored_version integer;
