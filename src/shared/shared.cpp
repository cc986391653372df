// Server code.
#include "shared/shared.hpp"

#include "pg/text.hpp"
#include "settings.hpp"

namespace outbox::shared {

namespace {

Shared* instance = nullptr;
char* slots = nullptr;
bool standby = false;
shmem_startup_hook_type previous_startup_hook = nullptr;
#if PG_VERSION_NUM >= 150000
shmem_request_hook_type previous_request_hook = nullptr;
#endif

Size workers_offset() { return MAXALIGN(sizeof(Database)); }
Size lanes_offset() { return workers_offset() + MAXALIGN(sizeof(Worker)) * processes_each(); }
Size slot_size() { return CACHELINEALIGN(lanes_offset() + MAXALIGN(sizeof(Lane)) * settings::max_lanes); }
Size header_size() { return CACHELINEALIGN(sizeof(Shared)); }
Size total_size() { return add_size(header_size(), mul_size(slot_size(), settings::max_databases)); }

void request_memory() {
#if PG_VERSION_NUM >= 150000
  if (previous_request_hook) previous_request_hook();
#endif
  RequestAddinShmemSpace(total_size());
  RequestNamedLWLockTranche("outbox", 1);
}

using Counter = pg_atomic_uint64 Lane::*;
constexpr Counter counters_of_a_lane[] = {
    &Lane::started,       &Lane::finished,  &Lane::first_waiting, &Lane::seen,     &Lane::unacknowledged,
    &Lane::oldest,        &Lane::published, &Lane::bytes,         &Lane::failures, &Lane::last_published_at,
    &Lane::completed_sync};

void clear_counters(Database* database) {
  for (int i = 0; i < settings::max_lanes; i++) {
    Lane* lane = lane_at(database, i);
    for (Counter counter : counters_of_a_lane) pg_atomic_write_u64(&(lane->*counter), 0);
    pg_atomic_write_u32(&lane->counted, 0);
    pg_atomic_write_u32(&lane->worker_pid, 0);
    pg_atomic_write_u32(&lane->worker, 0);
    pg_atomic_write_u32(&lane->recounts, 0);
    lane->last_error_since = 0;
    lane->last_error[0] = '\0';
  }
}

void initialize_database(Database* database) {
  pg_atomic_init_u32(&database->oid, InvalidOid);
  pg_atomic_init_u32(&database->evictions, 0);
  pg_atomic_init_u32(&database->abandoned, 0);
  pg_atomic_init_u32(&database->segment_wanted, 0);
  pg_atomic_init_u32(&database->workers_changed, 0);
  pg_atomic_init_u32(&database->progress_wanted, 0);
  pg_atomic_init_u64(&database->requested_sync, 0);
  pg_atomic_init_u64(&database->completed_sync, 0);
  pg_atomic_init_u64(&database->counted_since, 0);
  pg_atomic_init_u32(&database->lanes_used, 0);
  pg_atomic_init_u64(&database->awaiting_adoption, 0);
  pg_atomic_init_u64(&database->backlog_warned_at, 0);
  ConditionVariableInit(&database->moved);
  for (int i = 0; i < processes_each(); i++) {
    Worker* worker = worker_at(database, i);
    pg_atomic_init_u32(&worker->pid, 0);
    pg_atomic_init_u32(&worker->told, 0);
    pg_atomic_init_u32(&worker->healthy, 0);
  }
  for (int i = 0; i < settings::max_lanes; i++) {
    Lane* lane = lane_at(database, i);
    for (Counter counter : counters_of_a_lane) pg_atomic_init_u64(&(lane->*counter), 0);
    pg_atomic_init_u32(&lane->counted, 0);
    pg_atomic_init_u32(&lane->worker_pid, 0);
    pg_atomic_init_u32(&lane->worker, 0);
    pg_atomic_init_u32(&lane->recounts, 0);
  }
}

void start_up() {
  if (previous_startup_hook) previous_startup_hook();
  LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
  bool found;
  auto* memory = static_cast<char*>(ShmemInitStruct("outbox", total_size(), &found));
  instance = reinterpret_cast<Shared*>(memory);
  slots = memory + header_size();
  if (!found) {
    memset(memory, 0, total_size());
    instance->lock = &GetNamedLWLockTranche("outbox")->lock;
    instance->initialized_at = GetCurrentTimestamp();
    instance->databases = settings::max_databases;
    instance->lanes_each = settings::max_lanes;
    pg_atomic_init_u32(&instance->launcher_pid, 0);
    pg_atomic_init_u32(&instance->databases_changed, 1);
    pg_atomic_init_u32(&instance->probed, InvalidOid);
    pg_atomic_init_u32(&instance->claims_refused, 0);
    pg_atomic_init_u64(&instance->no_room_until, 0);
    for (int i = 0; i < settings::max_databases; i++) initialize_database(database_at(i));
  }
  LWLockRelease(AddinShmemInitLock);
}

}  // namespace

const char* state_name(WorkerState state) {
  switch (state) {
    case WorkerState::running:
      return "running";
    case WorkerState::idle:
      return "idle";
    case WorkerState::backing_off:
      return "backing_off";
    case WorkerState::paused:
      return "paused";
    case WorkerState::unconfigured:
      return "unconfigured";
    case WorkerState::awaiting_adoption:
      return "awaiting_adoption";
    case WorkerState::incompatible:
      return "incompatible";
    case WorkerState::not_running:
      break;
  }
  return "not_running";
}

void request() {
#if PG_VERSION_NUM >= 150000
  previous_request_hook = shmem_request_hook;
  shmem_request_hook = request_memory;
#else
  request_memory();
#endif
  previous_startup_hook = shmem_startup_hook;
  shmem_startup_hook = start_up;
}

Shared* get() { return instance; }

Database* database_at(int index) { return reinterpret_cast<Database*>(slots + slot_size() * index); }

Database* find(Oid database) {
  if (!instance) return nullptr;
  for (int i = 0; i < instance->databases; i++) {
    Database* slot = database_at(i);
    if (pg_atomic_read_u32(&slot->oid) == database) return slot;
  }
  return nullptr;
}

Database* claim(Oid database) {
  if (!instance) return nullptr;
  LWLockAcquire(instance->lock, LW_EXCLUSIVE);
  Database* slot = find(database);
  if (!slot) {
    slot = find(InvalidOid);
    if (slot) {
      for (int i = 0; i < processes_each(); i++) {
        Worker* worker = worker_at(slot, i);
        worker->latch = nullptr;
        worker->state = WorkerState::not_running;
        worker->since = GetCurrentTimestamp();
        strlcpy(worker->reason, "the process is being started", sizeof worker->reason);
      }
      clear_counters(slot);
      pg_atomic_write_u64(&slot->requested_sync, 0);
      pg_atomic_write_u64(&slot->completed_sync, 0);
      pg_atomic_write_u64(&slot->counted_since, static_cast<uint64>(GetCurrentTimestamp()));
      pg_atomic_write_u32(&slot->segment_wanted, 0);
      pg_atomic_write_u32(&slot->lanes_used, 0);
      pg_atomic_write_u64(&slot->awaiting_adoption, 0);
      pg_atomic_write_u64(&slot->backlog_warned_at, 0);
      pg_write_barrier();
      pg_atomic_write_u32(&slot->oid, database);
    }
  }
  if (slot) pg_atomic_write_u32(&slot->abandoned, 0);
  LWLockRelease(instance->lock);
  if (!slot) pg_atomic_write_u32(&instance->claims_refused, 1);
  return slot;
}

void release(Database* database) {
  LWLockAcquire(instance->lock, LW_EXCLUSIVE);
  pg_atomic_write_u32(&database->oid, InvalidOid);
  LWLockRelease(instance->lock);
}

bool release_abandoned(Database* database) {
  LWLockAcquire(instance->lock, LW_EXCLUSIVE);
  const bool abandoned = pg_atomic_exchange_u32(&database->abandoned, 0) != 0;
  if (abandoned) pg_atomic_write_u32(&database->oid, InvalidOid);
  LWLockRelease(instance->lock);
  return abandoned;
}

int workers_each() { return settings::max_workers_per_database; }
int maintenance_index() { return workers_each(); }
int archive_index() { return workers_each() + 1; }
int processes_each() { return workers_each() + 2; }

bool someone_there(Database* database) {
  for (int i = 0; i < processes_each(); i++)
    if (pg_atomic_read_u32(&worker_at(database, i)->pid) != 0) return true;
  return false;
}

Worker* worker_at(Database* database, int index) {
  return reinterpret_cast<Worker*>(reinterpret_cast<char*>(database) + workers_offset() +
                                   MAXALIGN(sizeof(Worker)) * index);
}

Lane* lane_at(Database* database, int lane) {
  return reinterpret_cast<Lane*>(reinterpret_cast<char*>(database) + lanes_offset() + MAXALIGN(sizeof(Lane)) * lane);
}

void use_lane(Database* database, int lane) {
  const auto wanted = static_cast<uint32>(lane) + 1;
  uint32 used = pg_atomic_read_u32(&database->lanes_used);
  while (used < wanted && !pg_atomic_compare_exchange_u32(&database->lanes_used, &used, wanted)) {
  }
}

Backlog backlog_of(Database* database) {
  Backlog result{static_cast<int64>(pg_atomic_read_u64(&database->awaiting_adoption)), 0, true};
  const auto lanes = static_cast<int>(pg_atomic_read_u32(&database->lanes_used));
  for (int i = 0; i < lanes; i++) {
    Lane* lane = lane_at(database, i);
    const uint32 before = pg_atomic_read_u32(&lane->recounts);
    pg_read_barrier();
    const auto seen = static_cast<int64>(pg_atomic_read_u64(&lane->seen));
    const auto unacknowledged = static_cast<int64>(pg_atomic_read_u64(&lane->unacknowledged));
    const auto started = static_cast<int64>(pg_atomic_read_u64(&lane->started));
    const uint64 waiting = pg_atomic_read_u64(&lane->first_waiting);
    const uint64 oldest_read = pg_atomic_read_u64(&lane->oldest);
    pg_read_barrier();
    if (before % 2 != 0 || before != pg_atomic_read_u32(&lane->recounts)) result.exact = false;
    const int64 pending = unacknowledged + started - seen;
    if (pending <= 0) continue;
    result.messages += pending;
    const auto oldest = static_cast<TimestampTz>(oldest_read != 0 ? oldest_read : waiting);
    if (oldest != 0 && (result.oldest == 0 || oldest < result.oldest)) result.oldest = oldest;
  }
  return result;
}

void forget_backlog(Database* database) {
  for (int i = 0; i < instance->lanes_each; i++) {
    Lane* lane = lane_at(database, i);
    pg_atomic_write_u64(&lane->unacknowledged, 0);
    pg_atomic_write_u64(&lane->seen, pg_atomic_read_u64(&lane->started));
  }
  pg_atomic_write_u64(&database->awaiting_adoption, 0);
}

void wake_worker(Database* database) {
  // Pairs with the worker, which publishes its latch before its first snapshot: either we see the latch, or that
  // snapshot sees our commit.
  pg_memory_barrier();
  for (int i = 0; i < processes_each(); i++) {
    Worker* worker = worker_at(database, i);
    (void)pg_atomic_fetch_or_u32(&worker->told, told_of_messages);
    Latch* latch = worker->latch;
    if (latch) SetLatch(latch);
  }
}

void wake_worker_for_commit(Database* database, int lane) {
  // Pairs with a worker that claims the lane: either we see it, or the snapshot that it takes then sees our commit.
  pg_memory_barrier();
  const uint32 number = pg_atomic_read_u32(&lane_at(database, lane)->worker);
  if (number == 0) return;
  Worker* worker = worker_at(database, static_cast<int>(number) - 1);
  // The exchange pairs with the one in Worker::read(): either that snapshot sees our commit, or we wake it again.
  if (pg_atomic_exchange_u32(&worker->told, 1) != 0) return;
  Latch* latch = worker->latch;
  if (latch) SetLatch(latch);
}

void share_lanes_anew(Database* database) {
  pg_atomic_fetch_add_u32(&database->workers_changed, 1);
  wake_worker(database);
}

void ask_for_progress(Database* database) {
  pg_atomic_fetch_add_u32(&database->progress_wanted, 1);
  for (int i = 0; i < workers_each(); i++)
    if (Latch* latch = worker_at(database, i)->latch) SetLatch(latch);
}

void wake_maintenance(Database* database, uint32 of) {
  Worker* maintenance = worker_at(database, maintenance_index());
  if ((pg_atomic_read_u32(&maintenance->told) & of) != 0) return;
  if ((pg_atomic_fetch_or_u32(&maintenance->told, of) & of) != 0) return;
  Latch* latch = maintenance->latch;
  if (latch) SetLatch(latch);
}

void wake_launcher() {
  pg_memory_barrier();
  if (instance && instance->launcher) SetLatch(instance->launcher);
}

void set_worker_state(Worker* worker, WorkerState state, const char* reason) {
  LWLockAcquire(instance->lock, LW_EXCLUSIVE);
  if (worker->state != state || strcmp(worker->reason, reason) != 0) {
    if (worker->state != state) worker->since = GetCurrentTimestamp();
    worker->state = state;
    pg::copy_text(worker->reason, reason, sizeof worker->reason);
  }
  LWLockRelease(instance->lock);
}

bool started_as_standby() { return standby; }
void set_started_as_standby(bool value) { standby = value; }

}  // namespace outbox::shared
