"""Dead tuples in all tables of the schema outbox and their TOAST tables: counted row by row, and by the statistics.

A row that was deleted and pruned is no tuple any more, but the statistics still know of it.
"""

from report import Line

COUNT = """
SELECT coalesce(sum((pgstattuple(c.oid)).dead_tuple_count), 0)::bigint, count(*), sum(pg_relation_size(c.oid))::bigint,
       (SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_all_tables WHERE schemaname = 'outbox')
  FROM pg_class c
 WHERE c.relkind IN ('r', 't')
   AND (c.relnamespace = 'outbox'::regnamespace
        OR c.oid IN (SELECT reltoastrelid FROM pg_class WHERE relnamespace = 'outbox'::regnamespace))
"""


def measure(stage):
    stage.sql("CREATE EXTENSION IF NOT EXISTS pgstattuple")
    dead, tables, size, known = stage.sql(COUNT)[0]
    measure = f"dead tuples in the {tables} tables of outbox ({size / 1e9:.1f} GB) after it all: counted; by the statistics"
    return [Line(measure, f"{dead:,}; {known:,}", "0", dead == 0 and known == 0)]
