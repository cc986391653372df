// The launcher, one a server: finds the databases that have the extension and keeps a worker running for each. It is
// connected to no database. Each turn it compares what should run with what runs; it does not only react.
#include <algorithm>
#include <vector>

#include "pg/error.hpp"
#include "settings.hpp"
#include "shared/shared.hpp"
#include "worker/probes.hpp"
#include "worker/process.hpp"

extern "C" {
PGDLLEXPORT void outbox_launcher_main(Datum argument);
}

namespace outbox::worker {

namespace {

constexpr long scan_interval_ms = 30'000;
constexpr long first_pause_ms = 500;
constexpr long longest_pause_ms = 30'000;

// One slot of shared memory as the launcher keeps it.
struct Child {
  Oid database = InvalidOid;
  BackgroundWorkerHandle* handle = nullptr;
  TimestampTz next_start = 0;
  long pause_ms = 0;
};

pid_t worker_pid(std::size_t slot) {
  return static_cast<pid_t>(
      pg_atomic_read_u32(&shared::worker_at(shared::database_at(static_cast<int>(slot)), 0)->pid));
}

// Databases that allow connections and are no templates.
std::vector<Oid> databases_to_serve() {
  struct Found {
    Oid* oids;
    int count;
  };
  const Found found = pg::call([] {
    Found result{nullptr, 0};
    SetCurrentStatementStartTimestamp();
    StartTransactionCommand();
    (void)GetTransactionSnapshot();
    MemoryContext before = MemoryContextSwitchTo(TopMemoryContext);
    Relation catalog = table_open(DatabaseRelationId, AccessShareLock);
    TableScanDesc scan = table_beginscan_catalog(catalog, 0, nullptr);
    int room = 16;
    result.oids = static_cast<Oid*>(palloc(sizeof(Oid) * room));
    while (HeapTuple tuple = heap_getnext(scan, ForwardScanDirection)) {
      auto* form = reinterpret_cast<Form_pg_database>(GETSTRUCT(tuple));
      if (!form->datallowconn || form->datistemplate) continue;
      if (result.count == room) result.oids = static_cast<Oid*>(repalloc(result.oids, sizeof(Oid) * (room *= 2)));
      result.oids[result.count++] = form->oid;
    }
    table_endscan(scan);
    table_close(catalog, AccessShareLock);
    MemoryContextSwitchTo(before);
    CommitTransactionCommand();
    return result;
  });
  std::vector<Oid> databases(found.oids, found.oids + found.count);
  pg::call([found] { pfree(found.oids); });
  return databases;
}

class Launcher {
 public:
  Launcher() : children_(static_cast<std::size_t>(settings::max_databases)) {
    // After a crash of the server: should a worker be the cause, sessions have some time between two crashes.
    constexpr long pause_ms = 1500;
    constexpr long start_up_ms = 10'000;
    if (TimestampDifferenceMilliseconds(PgStartTime, shared::get()->initialized_at) > start_up_ms)
      not_before_ = TimestampTzPlusMilliseconds(shared::get()->initialized_at, pause_ms);
  }

  void turn() {
    const TimestampTz now = GetCurrentTimestamp();
    if (pg_atomic_exchange_u32(&shared::get()->databases_changed, 0) != 0 || now >= next_scan_) {
      next_scan_ = TimestampTzPlusMilliseconds(now, scan_interval_ms);
      scan();
    }
    probes_.turn();
    for (std::size_t i = 0; i < children_.size(); i++) reconcile(children_[i], static_cast<int>(i));
  }

  [[nodiscard]] long sleep_ms() const {
    const TimestampTz now = GetCurrentTimestamp();
    TimestampTz wake = probes_.wake_at(next_scan_);
    for (std::size_t i = 0; i < children_.size(); i++) {
      const Child& child = children_[i];
      // While somebody needs the database alone, its end wakes us.
      const bool evicted = pg_atomic_read_u32(&shared::database_at(static_cast<int>(i))->evictions) != 0;
      if (OidIsValid(child.database) && !evicted && !is_running(child.handle) && worker_pid(i) == 0)
        wake = std::min(wake, std::max({child.next_start, not_before_, now}));
    }
    return std::clamp(TimestampDifferenceMilliseconds(now, wake), 10L, scan_interval_ms);
  }

 private:
  void scan() {
    const std::vector<Oid> databases = databases_to_serve();
    auto gone = [&](Oid oid) { return std::find(databases.begin(), databases.end(), oid) == databases.end(); };
    probes_.know(databases);
    condemned_.clear();
    for (int i = 0; i < settings::max_databases; i++) {
      const Oid oid = pg_atomic_read_u32(&shared::database_at(i)->oid);
      if (OidIsValid(oid) && gone(oid)) condemned_.push_back(oid);
    }
  }

  void reconcile(Child& child, int index) {
    shared::Database* database = shared::database_at(index);
    const Oid oid = pg_atomic_read_u32(&database->oid);
    const TimestampTz now = GetCurrentTimestamp();
    const bool condemned = std::find(condemned_.begin(), condemned_.end(), oid) != condemned_.end();
    if (is_running(child.handle)) {
      if (condemned || child.database != oid) TerminateBackgroundWorker(child.handle);
      return;
    }
    if (child.handle) ended(child, database, now);
    if (oid != child.database) {
      // A worker gives its slot back when it finds no extension; one created at that very moment is found by a probe.
      probes_.forget(child.database);
      if (pg_atomic_exchange_u32(&shared::get()->claims_refused, 0) != 0) probes_.forget_all();
      next_scan_ = std::min(next_scan_, now);
      child = Child{.database = oid};
    }
    // A worker that an earlier launcher started is not ours to wait for, but it is there; it wakes us when it leaves.
    const pid_t occupant = worker_pid(static_cast<std::size_t>(index));
    if (occupant != 0 && condemned) kill(occupant, SIGTERM);
    if (!OidIsValid(oid) || occupant != 0) return;
    if (condemned) {
      // Dropped, or no longer to be connected to. Only an empty slot may be given to another database.
      pg::call([database] { shared::release(database); });
      std::erase(condemned_, oid);
      return;
    }
    if (pg_atomic_read_u32(&database->evictions) != 0 || now < std::max(child.next_start, not_before_)) return;
    child.handle = start_process({"outbox_worker_main", "outbox worker", oid, index});
    if (child.handle) return;
    child.next_start = TimestampTzPlusMilliseconds(now, 5000);
    pg::call([database] {
      shared::set_worker_state(shared::worker_at(database, 0), shared::WorkerState::not_running,
                               "all slots of max_worker_processes are in use: raise it and restart the server");
    });
  }

  // A worker that ends before it has done anything is started again later and later; one that was terminated, at once.
  static void ended(Child& child, shared::Database* database, TimestampTz now) {
    pfree(child.handle);
    child.handle = nullptr;
    if (pg_atomic_exchange_u32(&shared::worker_at(database, 0)->healthy, 0) != 0)
      child.pause_ms = 0;
    else
      child.pause_ms = std::clamp(child.pause_ms * 2, first_pause_ms, longest_pause_ms);
    child.next_start = TimestampTzPlusMilliseconds(now, child.pause_ms);
    if (pg_atomic_read_u32(&database->oid) != child.database) return;
    pg::call([database] {
      shared::set_worker_state(shared::worker_at(database, 0), shared::WorkerState::not_running,
                               "the worker has ended and will be started again, see the server log");
    });
  }

  std::vector<Child> children_;
  std::vector<Oid> condemned_;  // in a slot, but not to be served any more
  Probes probes_;
  TimestampTz not_before_ = 0;
  TimestampTz next_scan_ = 0;
};

void leave(int, Datum) {
  shared::get()->launcher = nullptr;
  pg_atomic_write_u32(&shared::get()->launcher_pid, 0);
}

void run_launcher() {
  Launcher launcher;
  for (;;) {
    try {
      launcher.turn();
      const long sleep = launcher.sleep_ms();
      pg::call([sleep] {
        (void)WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, sleep, PG_WAIT_EXTENSION);
        ResetLatch(MyLatch);
        CHECK_FOR_INTERRUPTS();
        if (ConfigReloadPending) {
          ConfigReloadPending = false;
          ProcessConfigFile(PGC_SIGHUP);
        }
      });
    } catch (const pg::ErrorInFlight&) {
      pg::recover();
      pg::call([] { (void)WaitLatch(MyLatch, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 1000, PG_WAIT_EXTENSION); });
    }
  }
}

}  // namespace
}  // namespace outbox::worker

void outbox_launcher_main(Datum) {
  using namespace outbox;
  pqsignal(SIGTERM, die);
  pqsignal(SIGHUP, SignalHandlerForConfigReload);
  BackgroundWorkerUnblockSignals();
  worker::fix_transactions();
  BackgroundWorkerInitializeConnection(nullptr, nullptr, 0);
  shared::get()->launcher = MyLatch;
  pg_atomic_write_u32(&shared::get()->launcher_pid, static_cast<uint32>(MyProcPid));
  on_shmem_exit(worker::leave, 0);
  try {
    worker::run_launcher();
  } catch (const std::exception& e) {
    elog(LOG, "outbox launcher: %s", e.what());
  }
  proc_exit(1);
}
