ALTER TABLE connections
    -- When the credentials were last obtained or given. A provider that refuses fresh ones is not asked for more.
    ADD COLUMN credentials_changed_at       timestamptz NOT NULL DEFAULT now(),
    -- When a day of failing refreshes was last counted.
    ADD COLUMN refresh_day_counted_at       timestamptz;
