// What all sessions of the server share: which databases use the extension, whom to wake, how much is pending.
// Lives in shared memory, so it starts empty after a crash; nothing that must survive is kept here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pg/postgres.hpp"

namespace outbox::shared {

// Counters of one lane. How `pending` stays exact without a lock:
//   a committing session adds to `started` before its commit is visible and to `finished` after it (or after an abort);
//   the worker reads `finished`, then takes its snapshot: whatever is in that number is visible in the snapshot.
//   It adds what the snapshot shows to `unacknowledged`, then stores the number in `seen`.
//   pending = unacknowledged + started - seen.
// So a message counts from before it can be seen until Kafka has acknowledged it, and is never left out in between.
// A prepared transaction passes the first two by; it counts once the worker has read it.
struct Lane {
  pg_atomic_uint64 started;
  pg_atomic_uint64 finished;
  pg_atomic_uint64 first_waiting;  // when the oldest message since the newest snapshot was committed; 0: none
  pg_atomic_uint64 seen;
  pg_atomic_uint64 unacknowledged;
  pg_atomic_uint32 recounts;  // odd while the worker moves messages from the first two numbers to unacknowledged
  pg_atomic_uint64 oldest;    // enqueued_at of the oldest message read and not acknowledged; 0: none
  pg_atomic_uint32 counted;
  pg_atomic_uint32 worker_pid;
  pg_atomic_uint32 worker;  // number of its worker, from 1; 0: not claimed
  pg_atomic_uint64 published;
  pg_atomic_uint64 bytes;
  pg_atomic_uint64 failures;
  pg_atomic_uint64 last_published_at;
  pg_atomic_uint64 completed_sync;  // the newest Database::requested_sync that this lane has fulfilled
  // Under Shared::lock.
  TimestampTz last_error_since;
  char last_error[512];
};

enum class WorkerState : uint32_t {
  not_running,
  running,
  idle,
  backing_off,
  paused,
  unconfigured,
  awaiting_adoption,
  incompatible
};
const char* state_name(WorkerState state);

// The place of one process of a database.
struct Worker {
  pg_atomic_uint32 pid;      // 0: nobody
  Latch* latch;              // of a PGPROC, which outlives the process; under Shared::lock for writing
  pg_atomic_uint32 told;     // of something that it has not read yet; further commits do not wake it
  pg_atomic_uint32 healthy;  // it has done a whole turn: its end is no failure to start
  // Under Shared::lock.
  WorkerState state;
  TimestampTz since;
  char reason[512];
};

// A database that has the extension. Not moved while the server runs; the oid says whether the slot is in use.
struct Database {
  pg_atomic_uint32 oid;
  pg_atomic_uint32 evictions;       // > 0: somebody needs the database without our processes (DROP, RENAME, TEMPLATE)
  pg_atomic_uint32 abandoned;       // a process of ours found no extension: to be released when all have left
  pg_atomic_uint32 segment_wanted;  // an enqueuer waits for the first segment
  pg_atomic_uint32
      workers_changed;  // raised when a worker comes, leaves, or gives a lane up: lanes are shared out anew
  // Maintenance raises it: each publishing worker shall write down how far its lanes are, though nothing was published.
  pg_atomic_uint32 progress_wanted;
  pg_atomic_uint64 requested_sync;  // outbox.drain() raises it
  pg_atomic_uint64 completed_sync;  // fulfilled while there was no lane at all
  pg_atomic_uint64 counted_since;
  pg_atomic_uint32 lanes_used;         // lanes below this number may have something pending
  pg_atomic_uint64 awaiting_adoption;  // messages in lane -1 since the start of the server
  pg_atomic_uint64 backlog_warned_at;  // outbox.backlog_limit_action = warn; 0: never
  ConditionVariable moved;             // broadcast when progress was made or a segment opened
};

struct Shared {
  LWLock* lock;
  Latch* launcher;
  pg_atomic_uint32 launcher_pid;
  pg_atomic_uint32 databases_changed;  // the launcher shall read pg_database again
  pg_atomic_uint32 probed;             // the newest database that a probe has looked into
  pg_atomic_uint32 claims_refused;     // a database found no slot: to be asked again when one is free
  pg_atomic_uint64 no_room_until;      // max_worker_processes is short: what publishes comes first
  TimestampTz initialized_at;          // later than the start of the postmaster: after a crash
  int databases;
  int lanes_each;
};

// In shared_preload_libraries: asks for the memory; to be called from _PG_init.
void request();
// nullptr without shared_preload_libraries.
Shared* get();

Database* database_at(int index);
// The slot of a database, or nullptr. Lock-free, for the commit of an enqueuer.
Database* find(Oid database);
// The slot, taken if there is none; nullptr if outbox.max_databases are in use.
Database* claim(Oid database);
void release(Database* database);
// Unless the extension was created again meanwhile. True: it is free now.
bool release_abandoned(Database* database);

// The publishing workers come first, then one process of each other kind.
int workers_each();
int maintenance_index();
int archive_index();
int processes_each();
Worker* worker_at(Database* database, int index);
// A process has its place and may still be about to leave it.
bool someone_there(Database* database);
Lane* lane_at(Database* database, int lane);
// To be called before the first message of a lane is counted.
void use_lane(Database* database, int lane);

// What is committed and not acknowledged in all lanes, and what waits for outbox.adopt().
struct Backlog {
  int64 messages;
  TimestampTz oldest;  // enqueued_at; 0: not known
  bool exact;          // false: read while the worker counted; some may be in it twice
};
Backlog backlog_of(Database* database);
// The extension was dropped and created again: what was pending is gone.
void forget_backlog(Database* database);

// All processes that look at the database.
void wake_worker(Database* database);
// The worker that has the lane, for a commit; cheap when many come at a time.
void wake_worker_for_commit(Database* database, int lane);
// A worker came or left, or gave a lane up.
void share_lanes_anew(Database* database);
// For maintenance: raises Database::progress_wanted.
void ask_for_progress(Database* database);
// What Worker::told of maintenance says: something was enqueued; progress that it had asked for was written; the archive
// process has ended.
constexpr uint32 told_of_messages = 1;
constexpr uint32 told_of_progress = 2;
constexpr uint32 told_of_archive = 4;
// Cheap when many come at a time.
void wake_maintenance(Database* database, uint32 of);
void wake_launcher();
void set_worker_state(Worker* worker, WorkerState state, const char* reason);

// True once the postmaster has started as a standby: then a changed identity is a promotion, not a copy.
bool started_as_standby();
void set_started_as_standby(bool value);

}  // namespace outbox::shared
