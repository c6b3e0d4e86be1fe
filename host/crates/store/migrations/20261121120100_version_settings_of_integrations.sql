-- They are sealed too, so they refer to their data key.
CALL declare_sealed('integrations', 'sealed_settings');
