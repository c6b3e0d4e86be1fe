-- What an environment sets for all that happens in it. Webhook URLs may hold secrets, so they are never logged.
ALTER TABLE environments
    ADD COLUMN webhook_url                      text,
    ADD COLUMN webhook_url_secondary            text,
    ADD COLUMN callback_url                     text,
    ADD COLUMN on_auth_creation                 boolean NOT NULL DEFAULT true,
    ADD COLUMN on_auth_refresh_error            boolean NOT NULL DEFAULT true,
    ADD COLUMN on_sync_completion_always        boolean NOT NULL DEFAULT true,
    ADD COLUMN on_sync_error                    boolean NOT NULL DEFAULT true,
    ADD COLUMN on_async_action_completion       boolean NOT NULL DEFAULT true,
    ADD COLUMN connect_ui_title                 text,
    ADD COLUMN connect_ui_primary_color         text,
    ADD COLUMN updated_at                       timestamptz NOT NULL DEFAULT now();

-- The keys that sign an environment's webhooks. All of them sign while a rotation lasts, the newest first.
CREATE TABLE webhook_signing_keys (
    pk              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    environment_pk  bigint      NOT NULL REFERENCES environments ON DELETE CASCADE,
    id              uuid        NOT NULL UNIQUE,
    sealed_key      bytea       NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    expires_at      timestamptz
);
CREATE INDEX webhook_signing_keys_by_environment ON webhook_signing_keys (environment_pk, created_at DESC);
