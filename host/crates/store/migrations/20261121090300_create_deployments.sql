-- The compiled-from bytes of functions, once each however many deployments use them.
CREATE TABLE components (
    digest      bytea       PRIMARY KEY,
    wasm        bytea       NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now()
);
-- WebAssembly does not get smaller by the server's own compression; time does.
ALTER TABLE components ALTER COLUMN wasm SET STORAGE EXTERNAL;

-- Each bundle that was deployed, by name and version. One version of a name is active in an environment;
-- the earlier ones stay for a rollback.
CREATE TABLE deployments (
    pk              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    environment_pk  bigint      NOT NULL REFERENCES environments ON DELETE CASCADE,
    id              uuid        NOT NULL UNIQUE,
    bundle_name     text        NOT NULL,
    version         integer     NOT NULL,
    digest          text        NOT NULL,
    state           text        NOT NULL CHECK (state IN ('staged', 'active', 'superseded', 'failed')),
    config          jsonb       NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    activated_at    timestamptz,
    CONSTRAINT deployments_version UNIQUE (environment_pk, bundle_name, version)
);
CREATE UNIQUE INDEX deployments_active ON deployments (environment_pk, bundle_name) WHERE state = 'active';

CREATE TABLE functions (
    pk               bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    deployment_pk    bigint      NOT NULL REFERENCES deployments ON DELETE CASCADE,
    integration_pk   bigint      NOT NULL REFERENCES integrations ON DELETE CASCADE,
    kind             text        NOT NULL,
    name             text        NOT NULL,
    spec             jsonb       NOT NULL,
    component_digest bytea       NOT NULL REFERENCES components,
    CONSTRAINT functions_name UNIQUE (deployment_pk, integration_pk, kind, name)
);
CREATE INDEX functions_by_integration ON functions (integration_pk, kind, name);

-- Hosts that are alive. A deployment is switched on only when each of them has compiled its components.
CREATE TABLE hosts (
    id              uuid        PRIMARY KEY,
    version         text        NOT NULL,
    started_at      timestamptz NOT NULL DEFAULT now(),
    seen_at         timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE deployment_hosts (
    deployment_pk   bigint      NOT NULL REFERENCES deployments ON DELETE CASCADE,
    host_id         uuid        NOT NULL REFERENCES hosts ON DELETE CASCADE,
    problem         text,
    PRIMARY KEY (deployment_pk, host_id)
);
