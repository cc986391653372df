"""Dead tuples in all tables of the schema outbox and their TOAST tables, counted row by row."""

from report import Line

COUNT = """
SELECT coalesce(sum((pgstattuple(c.oid)).dead_tuple_count), 0)::bigint, count(*), sum(pg_relation_size(c.oid))::bigint
  FROM pg_class c
 WHERE c.relkind IN ('r', 't')
   AND (c.relnamespace = 'outbox'::regnamespace
        OR c.oid IN (SELECT reltoastrelid FROM pg_class WHERE relnamespace = 'outbox'::regnamespace))
"""


def measure(stage):
    stage.sql("CREATE EXTENSION IF NOT EXISTS pgstattuple")
    dead, tables, size = stage.sql(COUNT)[0]
    return [
        Line(f"dead tuples in {tables} tables ({size / 1e9:.1f} GB) after it all", f"{dead:,}", "0", dead == 0)
    ]
