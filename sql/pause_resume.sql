-- outbox.pause() and outbox.resume().
CREATE EXTENSION outbox;
CREATE FUNCTION eventually(condition text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  reached boolean;
  give_up timestamptz := clock_timestamp() + interval '30 s';
BEGIN
  LOOP
    EXECUTE 'SELECT coalesce((' || condition || '), false)' INTO reached;
    EXIT WHEN reached OR clock_timestamp() > give_up;
    PERFORM pg_sleep(0.02);
  END LOOP;
  RETURN reached;
END
$$;
SELECT eventually($$SELECT state = 'unconfigured' FROM outbox.workers WHERE process = 'outbox worker'$$);
SELECT outbox.pause();
SELECT eventually($$SELECT state = 'paused' FROM outbox.workers WHERE process = 'outbox worker'$$);
SELECT state, reason LIKE '%outbox.pause()%' AND reason LIKE '%outbox.resume()%' AS says_why_and_what_to_do
FROM outbox.workers WHERE process = 'outbox worker';
-- again: the same
SELECT outbox.pause();

-- Messages are still taken and counted.
SELECT outbox.enqueue('orders', 'while paused') IS NOT NULL AS ok;
SELECT payload, state FROM outbox.messages;
SELECT eventually($$SELECT pending = 1 FROM outbox.lanes$$);
SELECT outbox.drain('100 ms');

SELECT outbox.resume();
SELECT eventually($$SELECT state = 'unconfigured' FROM outbox.workers WHERE process = 'outbox worker'$$);
-- again: the same
SELECT outbox.resume();

-- Part of the transaction.
BEGIN;
SELECT outbox.pause();
ROLLBACK;
SELECT outbox.enqueue('orders', 'not paused') IS NOT NULL AS ok;
SELECT eventually($$SELECT pending = 2 FROM outbox.lanes$$);
SELECT state FROM outbox.workers WHERE process = 'outbox worker';

SET outbox.allow_data_loss = on;
DROP EXTENSION outbox;
DROP FUNCTION eventually;
