#include "segment/drop.hpp"

#include <algorithm>
#include <optional>

#include "claim/server_snapshot.hpp"
#include "pg/error.hpp"
#include "pg/lookup.hpp"
#include "segment/drained.hpp"

namespace outbox::segment {

namespace {

// Server code.
bool try_lock(Oid relation) {
  return !OidIsValid(relation) || ConditionalLockRelationOid(relation, AccessExclusiveLock);
}

// Server code. A DROP TABLE would wait for whoever has locked no more than an index.
bool try_lock_with_indexes(Oid table) {
  if (!try_lock(table)) return false;
  Relation relation = OidIsValid(table) ? pg::try_open(table, NoLock) : nullptr;
  if (!relation) return true;
  bool locked = true;
  List* indexes = RelationGetIndexList(relation);
  ListCell* cell;
  foreach (cell, indexes) locked = locked && try_lock(lfirst_oid(cell));
  const Oid toast = relation->rd_rel->reltoastrelid;
  relation_close(relation, NoLock);
  return locked && (!OidIsValid(toast) || try_lock_with_indexes(toast));
}

// Server code. Whoever appends progress holds the lane's row. False: somebody does just now.
bool lock_lane(std::int32_t lane) {
  Oid type = INT4OID;
  Datum value = Int32GetDatum(lane);
  if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
  if (SPI_execute_with_args("SELECT 1 FROM outbox._lane WHERE lane = $1 FOR UPDATE SKIP LOCKED", 1, &type, &value,
                            nullptr, false, 1) != SPI_OK_SELECT)
    elog(ERROR, "could not lock lane %d", lane);
  const bool locked = SPI_processed == 1;
  SPI_finish();
  return locked;
}

// Server code. Without the receipts: those are of messages that go with the segment.
void carry(std::int32_t lane, std::int64_t seq, std::int32_t from, std::int32_t to) {
  char sql[512];
  pg_snprintf(sql, sizeof sql,
              "INSERT INTO outbox._progress_%d (segment, lane, seq, messages, sent_id, appended_at, completed, "
              "window_end) SELECT %d, p.lane, p.seq, 0, p.sent_id, p.appended_at, p.completed, p.window_end "
              "FROM outbox._progress_%d p WHERE p.lane = $1 AND p.seq = $2",
              to, to, from);
  Oid types[] = {INT4OID, INT8OID};
  Datum values[] = {Int32GetDatum(lane), Int64GetDatum(seq)};
  if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
  if (SPI_execute_with_args(sql, 2, types, values, nullptr, false, 0) != SPI_OK_INSERT || SPI_processed != 1)
    elog(ERROR, "could not carry the progress of lane %d forward", lane);
  SPI_finish();
}

// The log as if the segment were gone.
Log without(const Log& log, std::int32_t segment) {
  Log rest = log;
  rest.entries = pg::call([&log] { return static_cast<Entry*>(palloc(sizeof(Entry) * (log.count + 1))); });
  rest.count = 0;
  for (int i = 0; i < log.count; i++)
    if (log.entries[i].row.segment != segment) rest.entries[rest.count++] = log.entries[i];
  return rest;
}

const Entry* newest_of_group(const Log& log, Group group) {
  for (int i = log.count - 1; i >= 0; i--)
    if (log.entries[i].row.group() == group && OidIsValid(log.entries[i].progress)) return &log.entries[i];
  return nullptr;
}

Log read_again(Snapshot* snapshot) {
  return pg::call([snapshot] {
    *snapshot = RegisterSnapshot(GetLatestSnapshot());
    return read_log(*snapshot);
  });
}

// With the segment's tables locked, its progress cannot change any more but by a lane whose row is not ours yet.
bool carry_cursors(const Entry& entry, const Log& log, Snapshot snapshot) {
  const Log rest = without(log, entry.row.segment);
  const Entry* target = newest_of_group(rest, entry.row.group());
  if (!target) return true;  // the group ends with it: nobody asks for its cursors any more
  const std::vector<LaneCursor> present = cursors_of(entry, log, snapshot);
  const std::vector<LaneCursor> elsewhere = cursors_of(entry, rest, snapshot);
  for (std::size_t i = 0; i < present.size(); i++) {
    const std::int64_t seq = present[i].cursor.seq;
    const std::int32_t lane = present[i].lane;
    if (seq == 0 || elsewhere[i].cursor.seq == seq) continue;
    if (!pg::call([lane] { return lock_lane(lane); })) return false;
    pg::call([&] { carry(lane, seq, entry.row.segment, target->row.segment); });
  }
  return true;
}

// Server code.
void execute(const char* sql) {
  if (SPI_execute(sql, false, 0) != SPI_OK_UTILITY) elog(ERROR, "could not execute: %s", sql);
}

// Server code. It is no member of the extension: what is in it outlives a DROP EXTENSION … CASCADE. Whoever owns the schema
// can drop what is in it.
void make_archive_schema() {
  const Oid schema = get_namespace_oid(archive_schema, true);
  if (!OidIsValid(schema)) {
    execute("CREATE SCHEMA outbox_archive");
    execute("COMMENT ON SCHEMA outbox_archive IS 'segments that outbox.archive_mode = detach has moved here'");
    return;
  }
  const Oid owner = pg::schema_owner(schema);
  if (owner == pg::extension_owner() || superuser_arg(owner)) return;
  ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
                  errmsg("schema \"%s\" belongs to \"%s\", which is neither the extension's owner nor a superuser",
                         archive_schema, GetUserNameFromId(owner, false)),
                  errhint("ALTER SCHEMA %s OWNER TO %s", archive_schema,
                          quote_identifier(GetUserNameFromId(pg::extension_owner(), false)))));
}

// Server code. From before the extension was dropped and created again there may be a table of that name, with its indexes.
void make_names_free(Oid table, TimestampTz opened_at) {
  if (!OidIsValid(get_relname_relid(get_rel_name(table), get_namespace_oid(archive_schema, false)))) return;
  Relation relation = relation_open(table, NoLock);
  List* all = lappend_oid(RelationGetIndexList(relation), table);
  relation_close(relation, NoLock);
  ListCell* cell;
  foreach (cell, all) {
    const char* name = get_rel_name(lfirst_oid(cell));
    execute(psprintf("ALTER %s outbox.%s RENAME TO %s", lfirst_oid(cell) == table ? "TABLE" : "INDEX",
                     quote_identifier(name),
                     quote_identifier(psprintf("%s_%lld", name, (long long)(opened_at / USECS_PER_SEC)))));
  }
}

// Server code.
void detach_table(const char* parent, Oid table, TimestampTz opened_at) {
  if (!OidIsValid(table)) return;
  execute(psprintf("ALTER TABLE outbox.%s DETACH PARTITION outbox.%s", parent, get_rel_name(table)));
  // Else the table would depend on the extension. What it got with the parent's triggers is gone.
  execute(psprintf("DROP TRIGGER IF EXISTS guard_truncate ON outbox.%s", get_rel_name(table)));
  make_names_free(table, opened_at);
  execute(psprintf("ALTER TABLE outbox.%s SET SCHEMA %s", get_rel_name(table), archive_schema));
}

// Server code.
void drop_table(Oid table) {
  if (OidIsValid(table)) execute(psprintf("DROP TABLE outbox.%s", quote_identifier(get_rel_name(table))));
}

// Server code.
void end_tables(const Entry& entry, bool detach) {
  if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
  if (detach) {
    make_archive_schema();
    detach_table("_message", entry.messages, entry.opened_at);
    detach_table("_progress", entry.progress, entry.opened_at);
  } else {
    drop_table(entry.messages);
    drop_table(entry.progress);
  }
  SPI_finish();
  add_event(entry.row.segment, detach ? "detached" : "dropped", 0, nullptr);
}

// Server code.
Dropped lock_tables(std::int32_t segment) {
  for (const char* parent : {"_message", "_progress"})
    if (!try_lock(pg::relation_oid(parent))) return Dropped::parents_locked;
  for (const char* parent : {"_message", "_progress"})
    if (!try_lock_with_indexes(pg::leaf_oid(parent, segment))) return Dropped::locked;
  return Dropped::yes;
}

}  // namespace

Dropped drop(std::int32_t segment, bool detach) {
  Dropped result = pg::call([segment] { return lock_tables(segment); });
  if (result != Dropped::yes) return result;
  Snapshot snapshot = nullptr;
  const Log log = read_again(&snapshot);
  const Entry* entry = find(log, segment);
  const bool there = entry && entry->row.state == State::drained;  // as it was a moment ago
  const bool ours = there && entry->row.generation == log.entries[log.count - 1].row.generation;
  if (ours && !is_published(*entry, log, snapshot))
    result = Dropped::behind;
  else if (!there || !carry_cursors(*entry, log, snapshot))
    result = Dropped::busy;
  pg::call([snapshot] { UnregisterSnapshot(snapshot); });
  if (result == Dropped::yes) pg::call([entry, detach] { end_tables(*entry, detach); });
  return result;
}

}  // namespace outbox::segment
