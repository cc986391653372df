#include "worker/life.hpp"

#include "pg/error.hpp"
#include "worker/process.hpp"
#include "worker/transaction.hpp"

namespace outbox::worker {

bool control_changed = true;
Oid watched_table = InvalidOid;
Oid watched_events = InvalidOid;

namespace {

Place mine;
Job* running = nullptr;  // a raw pointer: an exit callback deletes it, as an exit runs no destructors

void leave_place(int, Datum) {
  LWLockAcquire(shared::get()->lock, LW_EXCLUSIVE);
  mine.slot->latch = nullptr;
  pg_atomic_write_u32(&mine.slot->pid, 0);
  LWLockRelease(shared::get()->lock);
  ConditionVariableBroadcast(&mine.database->moved);
  if (mine.process < shared::workers_each()) shared::share_lanes_anew(mine.database);
  if (mine.process == shared::archive_index()) shared::wake_maintenance(mine.database, shared::told_of_archive);
  shared::wake_launcher();
}

// librdkafka's threads must be gone before shared memory is.
void end_job(int, Datum) {
  Job* job = running;
  running = nullptr;
  delete job;
}

void look_again() {
  control_changed = true;
  known_owner = InvalidOid;
}

void note_relation(Datum, Oid relation) {
  if (relation == InvalidOid || relation == watched_table || relation == watched_events) look_again();
}

void note_catalog(Datum, int, uint32) { look_again(); }

// Nobody else may be in this place, and nobody may need the database without us. See hooks.cpp, send_away().
bool take_place(const Given& given) {
  mine.database = shared::database_at(given.slot);
  mine.slot = shared::worker_at(mine.database, given.process);
  mine.process = given.process;
  if (pg_atomic_read_u32(&mine.database->oid) != given.database) return false;
  LWLockAcquire(shared::get()->lock, LW_EXCLUSIVE);
  const bool free = pg_atomic_read_u32(&mine.slot->pid) == 0;
  if (free) {
    mine.slot->latch = MyLatch;
    pg_atomic_write_u32(&mine.slot->pid, static_cast<uint32>(MyProcPid));
  }
  LWLockRelease(shared::get()->lock);
  if (!free) return false;
  on_shmem_exit(leave_place, 0);
  if (mine.process < shared::workers_each()) shared::share_lanes_anew(mine.database);
  pg_memory_barrier();
  if (pg_atomic_read_u32(&mine.database->evictions) != 0) {
    pg_atomic_write_u32(&mine.slot->healthy, 1);  // sent away, not failed
    return false;
  }
  return pg_atomic_read_u32(&mine.database->oid) == given.database;
}

void set(const char* name, const char* value) { SetConfigOption(name, value, PGC_SUSET, PGC_S_OVERRIDE); }

// What ALTER DATABASE and ALTER ROLE may have set does not apply here.
void fix_settings() {
  set("role", "none");
  set("search_path", "pg_catalog, pg_temp");
  set("statement_timeout", "0");
  set("lock_timeout", "1s");
  set("idle_in_transaction_session_timeout", "0");
  set("row_security", "off");
  // No trigger of a user runs in the process that holds lanes; our own are ENABLE ALWAYS.
  set("session_replication_role", "replica");
  set("synchronous_commit", "off");
  set("enable_seqscan", "off");
  set("default_tablespace", "");
  set("default_table_access_method", "heap");
  set("transform_null_equals", "off");
  set("exit_on_error", "off");
  set("jit", "off");
  set("client_min_messages", "error");
}

void connect(Oid database) {
  pqsignal(SIGTERM, die);
  pqsignal(SIGHUP, SignalHandlerForConfigReload);
  BackgroundWorkerUnblockSignals();
  fix_transactions();
  BackgroundWorkerInitializeConnectionByOid(database, InvalidOid, 0);
  fix_settings();
  CacheRegisterRelcacheCallback(note_relation, 0);
  for (const int cache : {FOREIGNSERVEROID, USERMAPPINGOID, FOREIGNDATAWRAPPEROID, AUTHOID})
    CacheRegisterSyscacheCallback(cache, note_catalog, 0);
}

// Waits for a commit, a report from Kafka, a signal or the time. True if it was not only Kafka.
bool wait(const Job& job) {
  const long sleep = job.sleep_ms();
  const int fd = job.wake_fd();
  const int events = pg::call([sleep, fd] {
    int wanted = WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH;
    if (fd >= 0) wanted |= WL_SOCKET_READABLE;
    const int happened = WaitLatchOrSocket(MyLatch, wanted, fd, sleep, PG_WAIT_EXTENSION);
    if ((happened & WL_LATCH_SET) != 0) ResetLatch(MyLatch);
    return happened;
  });
  return (events & (WL_LATCH_SET | WL_TIMEOUT)) != 0;
}

void reload() {
  if (!ConfigReloadPending) return;
  ConfigReloadPending = false;
  pg::call([] { ProcessConfigFile(PGC_SIGHUP); });
  control_changed = true;
}

// SIGTERM: writes down what Kafka has acknowledged, then dies of it.
void finish_and_die(Job& job) {
  ProcDiePending = false;
  InterruptPending = false;
  try {
    job.finish();
  } catch (const pg::ErrorInFlight&) {
    pg::recover();
  }
  ProcDiePending = true;
  InterruptPending = true;
  pg::call([] { CHECK_FOR_INTERRUPTS(); });
}

void take_turns(Job& job) {
  bool woken = true;
  for (;;) {
    try {
      if (ProcDiePending) finish_and_die(job);
      pg::call([] {
        CHECK_FOR_INTERRUPTS();
        AcceptInvalidationMessages();
      });
      reload();
      if (!job.turn(woken)) return;
      pg_atomic_write_u32(&mine.slot->healthy, 1);
      pgstat_report_stat(false);
      woken = wait(job);
    } catch (const pg::ErrorInFlight&) {
      char text[512];
      pg::error_message(text, sizeof text, nullptr);
      pg::recover(!job.says(text));
      job.back_off(text);
      woken = true;
    }
  }
}

}  // namespace

Place begin() {
  const Given place = given();
  if (!take_place(place)) proc_exit(1);
  connect(place.database);
  before_shmem_exit(end_job, 0);
  return mine;
}

void live(const Place& place, Job* (*make)(const Place& place)) {
  try {
    running = make(place);
    take_turns(*running);
  } catch (const pg::ErrorInFlight&) {
    pg::recover();
    proc_exit(1);
  } catch (const std::exception& e) {
    elog(LOG, "%s ends: %s", MyBgworkerEntry->bgw_type, e.what());
    pg_atomic_write_u32(&mine.slot->healthy, 0);
    proc_exit(1);
  }
  end_job(0, 0);
}

}  // namespace outbox::worker
