// What happens at the end of a transaction that enqueued: its messages are counted and the worker is woken. Server code.
//
// Counts are kept for each level of savepoints, as a rolled-back savepoint takes its messages with it.
#include "enqueue/message.hpp"
#include "settings.hpp"
#include "shared/shared.hpp"

namespace outbox::enqueue {

namespace {

struct Level {
  int nesting;
  Level* outer;
  bool wake;  // the launcher too
  bool use;   // the extension was created
  TimestampTz first;
  int64 total;
  int64 awaiting_adoption;
  int64 messages[FLEXIBLE_ARRAY_MEMBER];  // by lane
};

Level* innermost = nullptr;
bool announced = false;  // `started` was raised, so `finished` must be, whatever comes
bool wake_late = false;  // once the transaction's invalidations are sent

Level* level_here() {
  const int nesting = GetCurrentTransactionNestLevel();
  if (innermost && innermost->nesting == nesting) return innermost;
  auto* level = static_cast<Level*>(
      MemoryContextAllocZero(TopTransactionContext, offsetof(Level, messages) + sizeof(int64) * settings::max_lanes));
  level->nesting = nesting;
  level->outer = innermost;
  innermost = level;
  return level;
}

void add_to_counters(shared::Database* database, pg_atomic_uint64 shared::Lane::*counter) {
  for (int i = 0; i < settings::max_lanes; i++)
    if (innermost->messages[i] != 0)
      pg_atomic_fetch_add_u64(&(shared::lane_at(database, i)->*counter), innermost->messages[i]);
}

// Before the commit can be seen: a reader of `pending` may count a message early, never late.
void before_commit() {
  shared::Database* database = shared::find(MyDatabaseId);
  if (!innermost || !database) return;
  // Created anew. Its worker was sent away with the old extension, and the next one counts for itself.
  if (innermost->use) shared::forget_backlog(database);
  for (int i = 0; i < settings::max_lanes; i++) {
    if (innermost->messages[i] == 0) continue;
    shared::use_lane(database, i);
    uint64 none = 0;
    pg_atomic_compare_exchange_u64(&shared::lane_at(database, i)->first_waiting, &none,
                                   static_cast<uint64>(innermost->first));
  }
  add_to_counters(database, &shared::Lane::started);
  if (innermost->awaiting_adoption > 0)
    pg_atomic_fetch_add_u64(&database->awaiting_adoption, innermost->awaiting_adoption);
  announced = true;
}

void wake_workers(shared::Database* database) {
  for (int i = 0; i < settings::max_lanes; i++)
    if (innermost->messages[i] != 0) shared::wake_worker_for_commit(database, i);
  shared::wake_maintenance(database, shared::told_of_messages);
}

void after_end(bool committed) {
  if (innermost && innermost->use && committed && !shared::claim(MyDatabaseId))
    ereport(WARNING, (errmsg("messages of this database will not be published"),
                      errdetail("All %d slots of outbox.max_databases are in use.", settings::max_databases),
                      errhint("Raise outbox.max_databases and restart the server.")));
  shared::Database* database = innermost ? shared::find(MyDatabaseId) : nullptr;
  if (database && announced) add_to_counters(database, &shared::Lane::finished);
  if (database && announced && !committed && innermost->awaiting_adoption > 0)
    pg_atomic_fetch_sub_u64(&database->awaiting_adoption, innermost->awaiting_adoption);
  // Also after a commit that failed late: the worker alone takes its messages out of the count.
  if (database && (committed || announced)) wake_workers(database);
  wake_late = innermost && innermost->wake && committed;
  announced = false;
  innermost = nullptr;
}

void transaction_event(XactEvent event, void*) {
  switch (event) {
    case XACT_EVENT_PRE_COMMIT:
      before_commit();
      break;
    case XACT_EVENT_COMMIT:
      after_end(true);
      break;
    case XACT_EVENT_ABORT:
      after_end(false);
      break;
    case XACT_EVENT_PREPARE:
      innermost = nullptr;  // counted when the worker reads it, see shared::Lane
      break;
    default:
      break;
  }
}

// XACT_EVENT_COMMIT comes before the invalidations are sent: whoever is to read catalogs again would be woken too early.
void resources_released(ResourceReleasePhase phase, bool, bool is_top_level, void*) {
  if (phase != RESOURCE_RELEASE_AFTER_LOCKS || !is_top_level || !wake_late) return;
  wake_late = false;
  if (shared::Database* database = shared::find(MyDatabaseId)) shared::wake_worker(database);
  shared::wake_launcher();
}

void merge_into_outer(Level* inner) {
  innermost = inner->outer;
  inner->nesting--;
  if (!innermost || innermost->nesting != inner->nesting) {  // the outer level has enqueued nothing: take its place
    innermost = inner;
    return;
  }
  for (int i = 0; i < settings::max_lanes; i++) innermost->messages[i] += inner->messages[i];
  innermost->total += inner->total;
  innermost->awaiting_adoption += inner->awaiting_adoption;
  innermost->wake |= inner->wake;
  innermost->use |= inner->use;
  if (innermost->first == 0) innermost->first = inner->first;
  pfree(inner);
}

// A loop with an exception block makes a savepoint each round.
void forget(Level* inner) {
  innermost = inner->outer;
  pfree(inner);
}

void subtransaction_event(SubXactEvent event, SubTransactionId, SubTransactionId, void*) {
  if (!innermost || innermost->nesting != GetCurrentTransactionNestLevel()) return;
  if (event == SUBXACT_EVENT_COMMIT_SUB)
    merge_into_outer(innermost);
  else if (event == SUBXACT_EVENT_ABORT_SUB)
    forget(innermost);
}

}  // namespace

void count_at_commit(int32 lane, TimestampTz enqueued_at) {
  if (!shared::get() || lane >= settings::max_lanes) return;
  Level* level = level_here();
  level->total++;
  if (lane < 0) {
    level->awaiting_adoption++;
    return;
  }
  level->messages[lane]++;
  if (level->first == 0) level->first = enqueued_at;
}

int64 enqueued_so_far() {
  int64 total = 0;
  for (const Level* level = innermost; level; level = level->outer) total += level->total;
  return total;
}

void wake_at_commit() {
  if (shared::get()) level_here()->wake = true;
}

void use_at_commit() {
  if (!shared::get()) return;
  Level* level = level_here();
  level->wake = true;
  level->use = true;
}

void define_commit_callbacks() {
  RegisterXactCallback(transaction_event, nullptr);
  RegisterSubXactCallback(subtransaction_event, nullptr);
  RegisterResourceReleaseCallback(resources_released, nullptr);
}

}  // namespace outbox::enqueue
