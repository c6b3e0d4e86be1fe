INSERT INTO inbound_webhooks
    (id, environment_pk, integration_pk, event_type, delivery_id, headers, query, format, body, state)
VALUES (gen_random_uuid(), 1, 1, 'benchmark', gen_random_uuid()::text, '{"x-event-type": "benchmark"}', '', 'json',
        convert_to(repeat('x', :size), 'UTF8'), 'received');
