-- Where a provider signs the time of a delivery and not its id, whoever has recorded one could give it another id: it is
-- known by what was signed as well.
ALTER TABLE received_webhooks ADD COLUMN fingerprint text;
CREATE UNIQUE INDEX received_webhooks_signed_once ON received_webhooks (integration_pk, fingerprint)
    WHERE fingerprint IS NOT NULL;
