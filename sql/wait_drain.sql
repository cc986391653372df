-- outbox.wait_published() and outbox.drain() while nothing is published.
\set SHOW_CONTEXT never
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
\pset null '(null)'

-- Nothing was committed, so everything is published.
SELECT outbox.drain('30 s');

SELECT outbox.enqueue('orders', 'payload') AS id \gset
SELECT outbox.wait_published(:'id', '100 ms');
SELECT outbox.wait_published(message_id => :'id', timeout => '0');
SELECT outbox.wait_published(:'id', '-1 s');
SELECT outbox.drain('100 ms');
SELECT outbox.drain(timeout => '0');
SELECT outbox.drain('-1 s');

-- No such message.
SELECT outbox.wait_published('01890000-0000-7000-8000-000000000000', '1 s');
\echo :SQLSTATE
BEGIN;
SELECT outbox.enqueue('orders', 'rolled back') AS gone \gset
ROLLBACK;
\set VERBOSITY sqlstate
SELECT outbox.wait_published(:'gone', '1 s');
\set VERBOSITY default
SELECT outbox.wait_published(NULL, '1 s');

-- A message of this transaction cannot be published before its commit: said, not waited for. (The text has the id.)
BEGIN;
SELECT outbox.enqueue('orders', 'payload') AS own \gset
\set VERBOSITY sqlstate
SELECT outbox.wait_published(:'own', '30 s');
\set VERBOSITY default
ROLLBACK;
SELECT replace(:'LAST_ERROR_MESSAGE', :'own', '…') AS message;

-- The waits can be interrupted.
SET statement_timeout = '200 ms';
SELECT outbox.wait_published(:'id', '1 hour');
\echo :SQLSTATE
SELECT outbox.drain('1 hour');
\echo :SQLSTATE
-- NULL: without limit
SELECT outbox.drain(NULL);
\echo :SQLSTATE
RESET statement_timeout;

SET outbox.allow_data_loss = on;
DROP EXTENSION outbox;
DROP FUNCTION eventually;
