// Which segment new messages go to. Server code.
//
// The choice is read with the latest snapshot, also in a REPEATABLE READ transaction: an old snapshot would choose a
// segment that was rolled long ago. It is cached, and a roll makes every session forget it (relcache invalidation of
// outbox._segment). A lock on the leaf lasts to the end of the (sub)transaction and taking it reads invalidations, so a
// choice that still stands with the lock held cannot be a segment that was already judged drained.
//
// Order per key, when the number of lanes changes: whoever enqueues after somebody else has committed into the new segment
// must not write to the old one, which is published first. So a roll is not acted on before it has told all sessions, and each
// enqueue hears what was told, also in a transaction that holds its lock on the old leaf already.
#include "enqueue/message.hpp"
#include "pg/error.hpp"
#include "pg/lookup.hpp"
#include "segment/identity.hpp"
#include "segment/segment.hpp"
#include "shared/shared.hpp"

namespace outbox::enqueue {

namespace {

OpenSegment cached;
int32* cached_lanes = nullptr;  // of `cached`
bool cache_valid = false;
Oid watched = InvalidOid;         // outbox._segment
Oid watched_parent = InvalidOid;  // outbox._message: attaching a segment invalidates it, whatever becomes of triggers

Oid fitting_leaf = InvalidOid;  // looked at since it was last changed: it has the shape that we write

void invalidate(Datum, Oid relation) {
  if (relation == InvalidOid || relation == fitting_leaf) fitting_leaf = InvalidOid;
  if (relation == InvalidOid || relation == watched || relation == watched_parent) cache_valid = false;
}

void load_lanes(int32 layout, OpenSegment* into) {
  Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
  const segment::Lanes found = segment::read_lanes(layout, snapshot);
  UnregisterSnapshot(snapshot);
  if (found.count == 0)
    ereport(ERROR, (errcode(ERRCODE_DATA_CORRUPTED), errmsg("layout %d of the message log has no lanes", layout),
                    errdetail("outbox._layout has no row for it."), errhint("Was a restore complete?")));
  auto* lanes = static_cast<int32*>(MemoryContextAlloc(TopMemoryContext, sizeof(int32) * found.count));
  memcpy(lanes, found.lanes, sizeof(int32) * found.count);
  pfree(found.lanes);
  if (cached_lanes) pfree(cached_lanes);
  into->lanes = cached_lanes = lanes;
  into->lane_count = found.count;
}

// A commit can be seen before its invalidations are sent; its own xid stays locked until they are. Not a wait for whoever rolls:
// what is left of its commit takes microseconds.
void wait_until_told(TransactionId roll) {
  if (TransactionIdIsNormal(roll) && !TransactionIdIsCurrentTransactionId(roll))
    XactLockTableWait(roll, nullptr, nullptr, XLTW_None);
}

OpenSegment describe(const segment::Row& open) {
  OpenSegment found;
  found.segment = open.segment;
  load_lanes(open.layout, &found);
  found.leaf = pg::leaf_oid("_message", open.segment);
  found.sequence = pg::relation_oid("_message_id");
  if (!OidIsValid(found.sequence))
    ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("sequence \"outbox._message_id\" does not exist"),
                    errdetail("The extension \"outbox\" is not complete."), errhint("See outbox.workers.")));
  found.adopted = identity::is_adopted();
  return found;
}

// Most of what makes us forget leaves the open segment as it was: a segment was dropped, rows of those that are gone were
// deleted. Its number is never used again, and whatever closes it opens another one.
bool is_still_open(const OpenSegment& before) {
  if (before.segment == 0 || watched != pg::relation_oid("_segment") || !OidIsValid(pg::extension_oid())) return false;
  Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
  segment::Row newest;
  const bool still = segment::read_newest(snapshot, &newest) && newest.segment == before.segment;
  UnregisterSnapshot(snapshot);
  return still && before.leaf == pg::leaf_oid("_message", before.segment) &&
         before.sequence == pg::relation_oid("_message_id");
}

bool load() {
  const OpenSegment before = cached;
  cache_valid = true;
  cached = OpenSegment{};
  if (is_still_open(before)) {
    OpenSegment same = before;
    same.adopted = identity::is_adopted();
    if (cache_valid) {
      cached = same;
      return true;
    }
  }
  for (;;) {
    cache_valid = true;
    cached = OpenSegment{};
    watched = pg::relation_oid("_segment");
    watched_parent = pg::relation_oid("_message");
    if (!OidIsValid(watched) || !OidIsValid(pg::extension_oid()))
      ereport(ERROR,
              (errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("extension \"outbox\" is not installed in this database"),
               errhint("Run CREATE EXTENSION outbox.")));
    segment::Row open;
    const bool found = segment::read_open(&open);
    if (found) {
      wait_until_told(open.made_by);
      cached = describe(open);
    }
    if (cache_valid) {
      cache_valid = found;
      return found;
    }
  }
}

// Between the end of a worker and its next start there is none for some milliseconds; nor is there just after CREATE
// EXTENSION or the start of the server.
bool worker_may_come(shared::Database* database, TimestampTz asked_at) {
  constexpr int grace_ms = 1000;
  if (pg_atomic_read_u32(&shared::worker_at(database, 0)->pid) != 0) return true;
  return pg_atomic_read_u32(&shared::get()->launcher_pid) != 0 && pg_atomic_read_u32(&database->evictions) == 0 &&
         !TimestampDifferenceExceeds(asked_at, GetCurrentTimestamp(), grace_ms);
}

// The worker opens the first segment, so that no enqueuer waits for another one's commit.
bool ask_worker() {
  shared::Database* database = shared::find(MyDatabaseId);
  if (!database || !pg::extension_is_committed()) return false;
  constexpr long patience_ms = 3000;
  const TimestampTz asked_at = GetCurrentTimestamp();
  bool opened = false;
  ConditionVariablePrepareToSleep(&database->moved);
  while (worker_may_come(database, asked_at) &&
         !TimestampDifferenceExceeds(asked_at, GetCurrentTimestamp(), patience_ms)) {
    pg_atomic_write_u32(&database->segment_wanted, 1);
    shared::wake_worker(database);
    if ((opened = load())) break;
    (void)ConditionVariableTimedSleep(&database->moved, 100, PG_WAIT_EXTENSION);
    AcceptInvalidationMessages();
  }
  ConditionVariableCancelSleep();
  return opened;
}

void open_first() {
  if (ask_worker()) return;
  // Without a worker whoever comes first makes it, and the others wait for that transaction's end.
  LockRelationOid(watched, ShareRowExclusiveLock);
  if (!load()) segment::open_next();
}

// The open segment's table is gone (a half restored dump, a DROP TABLE): rolls on, so that new messages have a place. The
// worker says what is lost with the table.
void replace_lost(const OpenSegment& lost) {
  LockRelationOid(watched, ShareRowExclusiveLock);
  if (load() && cached.segment == lost.segment) segment::open_next();
}

void require_fitting(Relation leaf) {
  if (fitting_leaf == RelationGetRelid(leaf)) return;
  require_shape(leaf);
  require_room_for_nulls(leaf);
  fitting_leaf = RelationGetRelid(leaf);
}

}  // namespace

Relation open_leaf(OpenSegment* chosen) {
  int32 missing = 0;  // segment whose table could not be opened
  AcceptInvalidationMessages();
  for (;;) {
    if (!cache_valid && !load()) {
      open_first();
      continue;
    }
    const OpenSegment tried = cached;
    Relation leaf = OidIsValid(tried.leaf) ? pg::try_open(tried.leaf, RowExclusiveLock) : nullptr;
    if (leaf && cache_valid) {
      require_fitting(leaf);
      *chosen = tried;
      return leaf;
    }
    if (leaf) {
      relation_close(leaf, cached.leaf == tried.leaf ? NoLock : RowExclusiveLock);
    } else if (missing == tried.segment) {
      replace_lost(tried);
    } else {
      missing = tried.segment;
    }
    cache_valid = false;
    CHECK_FOR_INTERRUPTS();
  }
}

void forget_open_segment() {
  Oid relation = pg::relation_oid("_segment");
  if (OidIsValid(relation)) CacheInvalidateRelcacheByRelid(relation);
}

void define_open_segment_callback() { CacheRegisterRelcacheCallback(invalidate, 0); }

}  // namespace outbox::enqueue
