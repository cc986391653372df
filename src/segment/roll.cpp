#include "segment/roll.hpp"

#include "pg/error.hpp"
#include "pg/lookup.hpp"
#include "segment/log.hpp"

namespace outbox::segment {

namespace {

bool add_size(Oid relation_oid, Size* size) {
  if (!ConditionalLockRelationOid(relation_oid, AccessShareLock)) return false;
  Relation relation = pg::try_open(relation_oid, NoLock);
  if (!relation) return false;
  size->bytes += static_cast<int64>(RelationGetNumberOfBlocks(relation)) * BLCKSZ;
  relation_close(relation, AccessShareLock);
  return true;
}

bool add_sizes_of_indexes(Relation table, Size* size) {
  List* indexes = RelationGetIndexList(table);
  bool known = true;
  ListCell* cell;
  foreach (cell, indexes) known = known && add_size(lfirst_oid(cell), size);
  list_free(indexes);
  return known;
}

}  // namespace

Size measure(Oid table) {
  Size size;
  if (!OidIsValid(table) || !ConditionalLockRelationOid(table, AccessShareLock)) return size;
  Relation relation = pg::try_open(table, NoLock);
  if (!relation) return size;
  const BlockNumber blocks = RelationGetNumberOfBlocks(relation);
  size.empty = blocks == 0;
  size.bytes = static_cast<int64>(blocks) * BLCKSZ;
  size.known = add_sizes_of_indexes(relation, &size);
  const Oid toast_oid = relation->rd_rel->reltoastrelid;
  if (size.known && OidIsValid(toast_oid) && (size.known = add_size(toast_oid, &size))) {
    Relation toast = relation_open(toast_oid, AccessShareLock);
    size.known = add_sizes_of_indexes(toast, &size);
    relation_close(toast, AccessShareLock);
  }
  relation_close(relation, AccessShareLock);
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
