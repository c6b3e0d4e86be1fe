-- Deployed bundles and their functions.

-- The WebAssembly components of functions. Each is stored once, however many deployments use it.
CREATE TABLE components (
    digest      bytea       PRIMARY KEY,
    wasm        bytea       NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now()
);
-- Stored uncompressed: compression would take time and save little.
ALTER TABLE components ALTER COLUMN wasm SET STORAGE EXTERNAL;

-- Each deployed bundle, by name and version. One version of each bundle is active in an environment; earlier versions
-- stay for a rollback.
CREATE TABLE deployments (
    pk              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id              uuid        NOT NULL UNIQUE,
    environment_pk  bigint      NOT NULL REFERENCES environments ON DELETE CASCADE,
    bundle_name     text        NOT NULL,
    version         integer     NOT NULL,
    digest          text        NOT NULL,
    state           text        NOT NULL CHECK (state IN ('staged', 'active', 'superseded', 'failed')),
    config          jsonb       NOT NULL,
    -- The name of the secret key, account or system user that deployed the bundle.
    deployed_by     text        NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    activated_at    timestamptz,
    CONSTRAINT deployments_version UNIQUE (environment_pk, bundle_name, version)
);
CREATE UNIQUE INDEX deployments_active ON deployments (environment_pk, bundle_name) WHERE state = 'active';

-- The functions of each deployment.
CREATE TABLE functions (
    pk                  bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    deployment_pk       bigint  NOT NULL REFERENCES deployments ON DELETE CASCADE,
    integration_pk      bigint  NOT NULL REFERENCES integrations ON DELETE CASCADE,
    kind                text    NOT NULL,
    name                text    NOT NULL,
    spec                jsonb   NOT NULL,
    component_digest    bytea   NOT NULL REFERENCES components,
    CONSTRAINT functions_name UNIQUE (deployment_pk, integration_pk, kind, name)
);
CREATE INDEX functions_by_integration ON functions (integration_pk, kind, name);
CREATE INDEX functions_by_component ON functions (component_digest);

-- The hosts that have compiled the components of a deployment, or failed to. A deployment becomes active only after
-- every running host has compiled its components.
CREATE TABLE deployment_hosts (
    deployment_pk   bigint  NOT NULL REFERENCES deployments ON DELETE CASCADE,
    host_id         uuid    NOT NULL REFERENCES hosts ON DELETE CASCADE,
    -- Why the host cannot run the deployment; null if it can.
    problem         text,
    PRIMARY KEY (deployment_pk, host_id)
);
CREATE INDEX deployment_hosts_by_host ON deployment_hosts (host_id);
