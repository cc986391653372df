-- outbox.resend(): only dead letters, unchanged for now.
\set SHOW_CONTEXT never
CREATE EXTENSION outbox;
SELECT outbox.resend('01890000-0000-7000-8000-000000000000');
\echo :SQLSTATE
SELECT outbox.resend(NULL);
\echo :SQLSTATE
SELECT outbox.resend('01890000-0000-7000-8000-000000000000', '{"topic": "other"}');
\echo :SQLSTATE
SELECT outbox.resend(message_id => '01890000-0000-7000-8000-000000000000', corrections => '{}');
\echo :SQLSTATE
-- A pending message is no dead letter.
SELECT outbox.enqueue('orders', 'payload') AS id \gset
\set VERBOSITY sqlstate
SELECT outbox.resend(:'id');
\set VERBOSITY default
SELECT replace(:'LAST_ERROR_MESSAGE', :'id', '…') AS message;
SELECT count(*) FROM outbox.messages;
SELECT * FROM outbox.dead_letters;
SET outbox.allow_data_loss = on;
DROP EXTENSION outbox;
