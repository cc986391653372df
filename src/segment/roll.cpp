#include "segment/roll.hpp"

#include "pg/error.hpp"
#include "pg/lookup.hpp"
#include "segment/log.hpp"

namespace outbox::segment {

namespace {

// pg_total_relation_size() would wait for whoever has locked a table or an index.
bool lock_all(Relation table) {
  List* all = RelationGetIndexList(table);
  bool locked = true;
  ListCell* cell;
  foreach (cell, all) locked = locked && ConditionalLockRelationOid(lfirst_oid(cell), AccessShareLock);
  list_free(all);
  const Oid toast = table->rd_rel->reltoastrelid;
  if (!locked || !OidIsValid(toast)) return locked;
  if (!ConditionalLockRelationOid(toast, AccessShareLock)) return false;
  Relation toast_table = relation_open(toast, NoLock);
  locked = lock_all(toast_table);
  relation_close(toast_table, NoLock);
  return locked;
}

}  // namespace

Size measure(Oid table) {
  Size size;
  Relation relation =
      OidIsValid(table) && ConditionalLockRelationOid(table, AccessShareLock) ? pg::try_open(table, NoLock) : nullptr;
  if (!relation) return size;
  size.known = lock_all(relation);
  size.empty = RelationGetNumberOfBlocks(relation) == 0;
  relation_close(relation, NoLock);
  if (size.known) size.bytes = DatumGetInt64(DirectFunctionCall1(pg_total_relation_size, ObjectIdGetDatum(table)));
  return size;
}

bool roll(int32 segment) {
  if (!lock_log()) return false;
  // What the roll itself would wait for: see outbox._open_segment().
  for (const char* parent : {"_message", "_progress"}) {
    const Oid oid = pg::relation_oid(parent);
    if (!OidIsValid(oid) || !ConditionalLockRelationOid(oid, ShareUpdateExclusiveLock)) return false;
  }
  Row open;
  if (read_open(&open) && open.segment == segment) open_next();
  return true;
}

}  // namespace outbox::segment
