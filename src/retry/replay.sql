CREATE FUNCTION outbox.replay(topic text, since timestamptz, until timestamptz, target_topic text DEFAULT NULL) RETURNS bigint
LANGUAGE c VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_replay';
COMMENT ON FUNCTION outbox.replay(text, timestamptz, timestamptz, text) IS
  'publishes again what was published of a topic, enqueued from since until before until (NULL: no bound), as far as the log still has it: in order, with its message_id and the header outbox-replayed, to target_topic if given. Returns how many messages';
