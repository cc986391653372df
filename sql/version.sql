-- outbox.version() names what is installed.
CREATE EXTENSION outbox;
SELECT v.outbox ~ ('^' || e.extversion) AS same_as_extension, v.postgresql = current_setting('server_version') AS same_as_server,
       v.librdkafka ~ '^\d+\.\d+\.\d+' AS names_librdkafka
FROM outbox.version() v, pg_extension e
WHERE e.extname = 'outbox';
DROP EXTENSION outbox;
