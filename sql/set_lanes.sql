-- outbox.set_lanes(): messages are spread over lanes by their key, and the number belongs to the segment.
CREATE EXTENSION outbox;
CREATE FUNCTION refusal(statement text, OUT state text, OUT message text, OUT detail text, OUT hint text) LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE statement;
EXCEPTION WHEN OTHERS THEN
  GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
END $$;
\x
SELECT * FROM refusal('SELECT outbox.set_lanes(0)');
SELECT * FROM refusal('SELECT outbox.set_lanes(NULL)');
SELECT * FROM refusal('SELECT outbox.set_lanes(65)');
SELECT * FROM refusal($$SELECT outbox.set_lanes(2, 'nowhere')$$);
\x
BEGIN READ ONLY;
SELECT state FROM refusal('SELECT outbox.set_lanes(2)');
ROLLBACK;
-- Nothing is changed.
SELECT lane, server FROM outbox.lanes ORDER BY lane;
SELECT count(*) FROM outbox.segments;

-- Before the first message there is nothing to roll.
SELECT outbox.set_lanes(2);
SELECT count(*) FROM outbox.segments;
SELECT lane, server FROM outbox.lanes ORDER BY lane;
SELECT count(outbox.enqueue('orders', 'p', 'key ' || n)) FROM generate_series(1, 100) n;
SELECT segment, lanes FROM outbox.segments ORDER BY segment;
SELECT lane, count(*) BETWEEN 20 AND 80 AS a_fair_part FROM outbox.messages GROUP BY lane ORDER BY lane;

-- The same number changes nothing; another one rolls, and a key stays in one lane within a segment.
SELECT outbox.set_lanes(2);
SELECT outbox.set_lanes(4);
SELECT segment, state, lanes FROM outbox.segments WHERE state <> 'drained' ORDER BY segment;
SELECT count(outbox.enqueue('orders', 'p', 'key ' || n % 10)) FROM generate_series(1, 100) n;
SELECT segment, count(DISTINCT lane) > 1 AS several, max(in_lanes) AS lanes_of_a_key
FROM (SELECT m.segment, m.lane, count(*) OVER (PARTITION BY m.segment, m.key) FROM outbox._message m) m
JOIN LATERAL (SELECT count(DISTINCT o.lane) AS in_lanes FROM outbox._message o WHERE o.segment = m.segment GROUP BY o.key) k ON true
GROUP BY segment ORDER BY segment;
-- Messages without a key are spread evenly.
SELECT outbox.roll();
SELECT count(outbox.enqueue('orders', 'p')) FROM generate_series(1, 100) n;
SELECT lane, count(*) FROM outbox._message WHERE segment = 3 GROUP BY lane ORDER BY lane;
SELECT outbox.set_lanes(1);
SELECT lane FROM outbox.lanes ORDER BY lane;
SELECT count(outbox.enqueue('orders', 'p')) FROM generate_series(1, 10) n;
SELECT DISTINCT lane FROM outbox._message WHERE segment = 4;

-- Lane numbers are unique in the database.
CREATE SERVER second FOREIGN DATA WRAPPER outbox_kafka OPTIONS ("bootstrap.servers" 'localhost:1');
SELECT outbox.set_lanes(2, 'second');
SELECT outbox.set_lanes(3, 'kafka');
SELECT server, array_agg(lane ORDER BY lane) FROM outbox.lanes GROUP BY server ORDER BY server;
\x
SELECT * FROM refusal('SELECT outbox.set_lanes(63)');
\x
DROP FUNCTION refusal;
SET outbox.allow_data_loss = on;
SET client_min_messages = warning;
DROP EXTENSION outbox CASCADE;
