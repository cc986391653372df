CREATE EXTENSION outbox;
CREATE SERVER kafka FOREIGN DATA WRAPPER outbox_kafka OPTIONS ("bootstrap.servers" :'bootstrap');

CREATE TABLE orders (id int PRIMARY KEY, item text NOT NULL);

BEGIN;
INSERT INTO orders VALUES (1, 'an espresso machine');
SELECT outbox.enqueue('orders', to_jsonb(o), key => o.id::text, headers => '{"type": "OrderPlaced"}')
  FROM orders o WHERE id = 1;
COMMIT;

BEGIN;
INSERT INTO orders VALUES (2, 'never bought');
SELECT outbox.enqueue('orders', to_jsonb(o), key => o.id::text, headers => '{"type": "OrderPlaced"}')
  FROM orders o WHERE id = 2;
ROLLBACK;

-- not needed: only so that the demo looks at Kafka after the worker has published
SELECT outbox.drain('30 s');
