-- A provider set up in an environment, under the unique key that clients call `provider_config_key`.
-- What is sealed is bound to its row by the `id`, which never changes.
CREATE TABLE integrations (
    pk                  bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id                  uuid        NOT NULL UNIQUE,
    environment_pk      bigint      NOT NULL REFERENCES environments ON DELETE CASCADE,
    unique_key          text        NOT NULL,
    provider            text        NOT NULL,
    display_name        text,
    forward_webhooks    boolean     NOT NULL DEFAULT true,
    sealed_credentials  bytea,
    created_at          timestamptz NOT NULL DEFAULT now(),
    updated_at          timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT integrations_unique_key UNIQUE (environment_pk, unique_key)
);
