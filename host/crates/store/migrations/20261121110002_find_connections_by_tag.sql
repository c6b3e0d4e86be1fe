-- An end user is named by the connection's `end_user` or, where there is none, by its tags.
CREATE INDEX connections_by_end_user_tag ON connections (environment_pk, (tags->>'end_user_id'));
