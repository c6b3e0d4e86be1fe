-- What a provider sends to try the URL out, before there is a secret that could tell it from others', is kept to be looked
-- at and for nothing else.
ALTER TABLE received_webhooks
    DROP CONSTRAINT received_webhooks_state_check,
    ADD CONSTRAINT received_webhooks_state_check
        CHECK (state IN ('received', 'processing', 'processed', 'unmatched', 'failed', 'handshake'));
