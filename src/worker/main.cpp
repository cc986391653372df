// The process around the worker: signals, connection, the wait, errors, the end.
#include <malloc.h>

#include <memory>

#include "pg/error.hpp"
#include "pg/lookup.hpp"
#include "settings.hpp"
#include "shared/shared.hpp"
#include "worker/process.hpp"
#include "worker/transaction.hpp"
#include "worker/worker.hpp"

extern "C" PGDLLEXPORT void outbox_worker_main(Datum argument);

namespace outbox::worker {

namespace {

shared::Database* my_database = nullptr;
shared::Worker* my_slot = nullptr;
Worker* running = nullptr;  // a raw pointer: an exit callback deletes it, as an exit runs no destructors

void leave_slot(int, Datum) {
  LWLockAcquire(shared::get()->lock, LW_EXCLUSIVE);
  my_slot->latch = nullptr;
  pg_atomic_write_u32(&my_slot->pid, 0);
  LWLockRelease(shared::get()->lock);
  ConditionVariableBroadcast(&my_database->moved);
  shared::share_lanes_anew(my_database);
  shared::wake_launcher();
}

// librdkafka's threads must be gone before shared memory is.
void end_publishing(int, Datum) {
  Worker* worker = running;
  running = nullptr;
  delete worker;
}

void look_again() {
  control_changed = true;
  known_owner = InvalidOid;
}

void note_relation(Datum, Oid relation) {
  if (relation == InvalidOid || relation == watched_table) look_again();
}

void note_catalog(Datum, int, uint32) { look_again(); }

// Nobody else may be in this slot, and nobody may need the database without us. See hooks.cpp, send_away().
bool enter_slot(Oid database, int index) {
  my_database = shared::database_at(index);
  my_slot = shared::worker_at(my_database, 0);
  if (pg_atomic_read_u32(&my_database->oid) != database) return false;
  LWLockAcquire(shared::get()->lock, LW_EXCLUSIVE);
  const bool free = pg_atomic_read_u32(&my_slot->pid) == 0;
  if (free) {
    my_slot->latch = MyLatch;
    pg_atomic_write_u32(&my_slot->pid, static_cast<uint32>(MyProcPid));
  }
  LWLockRelease(shared::get()->lock);
  if (!free) return false;
  on_shmem_exit(leave_slot, 0);
  shared::share_lanes_anew(my_database);
  pg_memory_barrier();
  if (pg_atomic_read_u32(&my_database->evictions) != 0) {
    pg_atomic_write_u32(&my_slot->healthy, 1);  // sent away, not failed
    return false;
  }
  return pg_atomic_read_u32(&my_database->oid) == database;
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

// The C library raises the size from which it maps memory of its own, to that of the largest block that was freed. Then
// blocks of batches lie between small ones, and cannot go back when a rush is over.
void keep_large_blocks_apart() { (void)mallopt(M_MMAP_THRESHOLD, 128 * 1024); }

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
bool wait(const Worker& worker) {
  const long sleep = worker.sleep_ms();
  const int fd = worker.wake_fd();
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
void finish_and_die(Worker& worker) {
  ProcDiePending = false;
  InterruptPending = false;
  try {
    worker.finish();
  } catch (const pg::ErrorInFlight&) {
    pg::recover();
  }
  ProcDiePending = true;
  InterruptPending = true;
  pg::call([] { CHECK_FOR_INTERRUPTS(); });
}

void run(Worker& worker) {
  bool woken = true;
  for (;;) {
    try {
      if (ProcDiePending) finish_and_die(worker);
      pg::call([] {
        CHECK_FOR_INTERRUPTS();
        AcceptInvalidationMessages();
      });
      reload();
      if (!worker.turn(woken)) return;
      pg_atomic_write_u32(&my_slot->healthy, 1);
      pgstat_report_stat(false);
      woken = wait(worker);
    } catch (const pg::ErrorInFlight&) {
      char text[512];
      pg::error_message(text, sizeof text, nullptr);
      pg::recover(!worker.says(text));
      worker.back_off(text);
      woken = true;
    }
  }
}

}  // namespace
}  // namespace outbox::worker

void outbox_worker_main(Datum argument) {
  using namespace outbox;
  Oid database;
  memcpy(&database, MyBgworkerEntry->bgw_extra, sizeof database);
  if (!worker::enter_slot(database, DatumGetInt32(argument))) proc_exit(1);
  worker::keep_large_blocks_apart();
  worker::connect(database);
  before_shmem_exit(worker::end_publishing, 0);
  try {
    worker::running = new worker::Worker(worker::my_database, 0);
    worker::run(*worker::running);
  } catch (const pg::ErrorInFlight&) {
    pg::recover();
    proc_exit(1);
  } catch (const std::exception& e) {
    elog(LOG, "outbox worker ends: %s", e.what());
    pg_atomic_write_u32(&worker::my_slot->healthy, 0);
    proc_exit(1);
  }
  // DROP EXTENSION
  shared::release(worker::my_database);
  proc_exit(0);
}
