#include "segment/roll.hpp"

#include "pg/error.hpp"
#include "pg/lookup.hpp"
#include "segment/log.hpp"

namespace outbox::segment {

namespace {

int64 bytes_of(Relation relation) {
  int64 blocks = 0;
  for (const ForkNumber fork : {MAIN_FORKNUM, FSM_FORKNUM, VISIBILITYMAP_FORKNUM, INIT_FORKNUM})
    if (smgrexists(RelationGetSmgr(relation), fork)) blocks += RelationGetNumberOfBlocksInFork(relation, fork);
  return blocks * BLCKSZ;
}

// Each lock is only tried, and given back at once: pg_total_relation_size() would wait. False: somebody has locked it.
bool add_size(Oid oid, Size* size) {
  if (!ConditionalLockRelationOid(oid, AccessShareLock)) return false;
  Relation relation = pg::try_open(oid, NoLock);
  if (!relation) return false;
  size->bytes += bytes_of(relation);
  List* parts = RelationGetIndexList(relation);
  if (OidIsValid(relation->rd_rel->reltoastrelid)) parts = lappend_oid(parts, relation->rd_rel->reltoastrelid);
  bool known = true;
  ListCell* cell;
  foreach (cell, parts) known = known && add_size(lfirst_oid(cell), size);
  list_free(parts);
  relation_close(relation, AccessShareLock);
  return known;
}

}  // namespace

Size measure(Oid table) {
  Size size;
  Relation relation =
      OidIsValid(table) && ConditionalLockRelationOid(table, AccessShareLock) ? pg::try_open(table, NoLock) : nullptr;
  if (!relation) return size;
  size.empty = RelationGetNumberOfBlocks(relation) == 0;
  size.known = add_size(table, &size);
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

namespace {

// Whoever only watches does not wait for locks.
Datum bytes(PG_FUNCTION_ARGS) {
  const Size size = measure(PG_GETARG_OID(0));
  if (!size.known) PG_RETURN_NULL();
  PG_RETURN_INT64(size.bytes);
}

}  // namespace
}  // namespace outbox::segment

OUTBOX_SERVER_FUNCTION(outbox_bytes, outbox::segment::bytes);
