-- The people who use the dashboard.

-- An account belongs to the installation and can see every environment. Its role decides what it can do.
CREATE TABLE accounts (
    pk                  bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id                  uuid        NOT NULL UNIQUE DEFAULT gen_random_uuid(),
    -- In lower case.
    email               text        NOT NULL UNIQUE,
    name                text        NOT NULL,
    role                text        NOT NULL CHECK (role IN ('viewer', 'developer', 'administrator')),
    -- Argon2id in PHC format. NULL until the person has opened the link of the invitation.
    password_hash       text,
    created_at          timestamptz NOT NULL DEFAULT now(),
    last_sign_in_at     timestamptz
);

-- Browsers that are signed in. A row is deleted when the person signs out or the session is revoked, and every request
-- reads it, so that the session ends at once on all hosts.
CREATE TABLE account_sessions (
    pk                  bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id                  uuid        NOT NULL UNIQUE DEFAULT gen_random_uuid(),
    account_pk          bigint      NOT NULL REFERENCES accounts ON DELETE CASCADE,
    -- SHA-256 of the cookie.
    token_hash          bytea       NOT NULL UNIQUE,
    address             text,
    user_agent          text,
    created_at          timestamptz NOT NULL DEFAULT now(),
    last_used_at        timestamptz NOT NULL DEFAULT now(),
    expires_at          timestamptz NOT NULL
);
CREATE INDEX account_sessions_by_account ON account_sessions (account_pk);
CREATE INDEX account_sessions_by_expiry ON account_sessions (expires_at);

-- Links that can be used once: to choose the password of an account, or, without an account, to create the first one.
CREATE TABLE account_links (
    -- SHA-256 of the token in the link.
    token_hash          bytea       PRIMARY KEY,
    account_pk          bigint      REFERENCES accounts ON DELETE CASCADE,
    expires_at          timestamptz NOT NULL
);
CREATE INDEX account_links_by_account ON account_links (account_pk);

-- Failed attempts to sign in, by the typed email address. Addresses without an account are counted in the same way, so
-- that the responses do not show which addresses have one.
CREATE TABLE sign_in_failures (
    -- SHA-256 of the address in lower case.
    email_hash          bytea       PRIMARY KEY,
    failures            integer     NOT NULL,
    locked_until        timestamptz,
    last_failure_at     timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX sign_in_failures_by_time ON sign_in_failures (last_failure_at);
