-- The audit log: who changed what, and who read credentials.

-- An entry is written in the transaction of its change. It outlives everything that it names, so it refers to nothing by
-- a foreign key and contains names besides row numbers.
CREATE TABLE audit_log (
    pk                  bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id                  uuid        NOT NULL DEFAULT gen_random_uuid(),
    -- When the entry was written, not when its transaction began: a transaction can wait for locks.
    at                  timestamptz NOT NULL DEFAULT clock_timestamp(),
    environment_pk      bigint,
    environment_name    text,
    actor_kind          text        NOT NULL,
    -- A UUID, or the name of the operating system's user of a command.
    actor_id            text        NOT NULL,
    actor_name          text,
    action              text        NOT NULL,
    target_kind         text        NOT NULL,
    target              text        NOT NULL,
    -- Names, numbers and flags. Never a secret value.
    details             jsonb       NOT NULL DEFAULT '{}',
    -- The address of the client's network connection.
    address             inet,
    request_id          text
);
-- Lists are newest first. Retention deletes in the opposite direction.
CREATE INDEX audit_log_by_time ON audit_log (at, pk);
CREATE INDEX audit_log_by_environment ON audit_log (environment_name, at, pk);
CREATE INDEX audit_log_by_actor ON audit_log (actor_id, at, pk);
CREATE INDEX audit_log_by_action ON audit_log (action, at, pk);
CREATE INDEX audit_log_by_target ON audit_log (target, at, pk);

-- Entries can be added only. The one exception is retention: its transaction sets `syncline.audit_log_retention`
-- (`SET LOCAL`, so the setting ends with the transaction), and deletes entries that are at least a day old. This protects
-- against mistakes and against statements that somebody injects into a host. A superuser can still disable the triggers;
-- to be protected against operators of the database too, export the entries to another system.
CREATE FUNCTION refuse_audit_log_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
    BEGIN
        IF TG_OP = 'DELETE' THEN
            IF current_setting('syncline.audit_log_retention', true) = 'on'
                AND OLD.at < clock_timestamp() - interval '1 day'
            THEN
                RETURN OLD;
            END IF;
        END IF;
        RAISE EXCEPTION 'the audit log is append-only: % is refused', TG_OP
            USING ERRCODE = 'insufficient_privilege';
    END
    $$;
CREATE TRIGGER audit_log_rows BEFORE UPDATE OR DELETE ON audit_log
    FOR EACH ROW EXECUTE FUNCTION refuse_audit_log_change();
CREATE TRIGGER audit_log_truncation BEFORE TRUNCATE ON audit_log
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_log_change();

-- Who approved a run, so that the entry names the right author even if another host finishes the approval.
ALTER TABLE approvals_in_progress ADD COLUMN approved_by jsonb NOT NULL;
