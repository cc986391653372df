CREATE FUNCTION outbox.wait_published(message_id uuid, timeout interval DEFAULT '10 seconds') RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_wait_published';
COMMENT ON FUNCTION outbox.wait_published(uuid, interval) IS 'waits until Kafka has acknowledged the message; false when the time is over. An error if there is no such message, if it is a dead letter, or if the current transaction enqueued it';

CREATE FUNCTION outbox.drain(timeout interval DEFAULT '1 minute') RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_drain';
COMMENT ON FUNCTION outbox.drain(interval) IS 'waits until everything committed before the call is published or a dead letter; false when the time is over';
