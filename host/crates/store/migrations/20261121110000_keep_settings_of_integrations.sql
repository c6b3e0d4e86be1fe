-- What an integration is set up with beside its app's credentials. Some of it may be secret, so all of it is sealed,
-- bound to the row by the `id`.
ALTER TABLE integrations ADD COLUMN sealed_settings bytea;
