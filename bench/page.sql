\set page random(0, :pages - 1)
\set after :page * (:limit - 1)
SELECT position, last_action AS "last_action: LastAction", first_seen_at, last_modified_at, deleted_at,
       pruned_at, payload, CASE WHEN payload IS NULL THEN external_id END AS id_without_payload,
       payload_key, payload_ciphertext
FROM records
WHERE connection_pk = :connection AND stream_no = :stream AND position > :after
ORDER BY position LIMIT :limit;
