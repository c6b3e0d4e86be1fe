-- A host finds the authorizations whose outcomes its clients wait for.
CREATE INDEX authorizations_by_listener ON authorizations (listener) WHERE listener IS NOT NULL;
