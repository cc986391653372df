// The launcher, one a server: finds the databases that have the extension and keeps workers and a maintenance process
// running for each. It is connected to no database. Each turn it compares what should run with what runs; it does not only
// react.
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
constexpr long retry_ms = 5'000;  // where max_worker_processes is short

// One process of one database.
struct Child {
  BackgroundWorkerHandle* handle = nullptr;
  TimestampTz next_start = 0;
  long pause_ms = 0;
  bool starved = false;  // there was no slot of max_worker_processes for it
};

// One slot of shared memory as the launcher keeps it.
struct Served {
  Oid database = InvalidOid;
  std::vector<Child> children;  // in the order of shared::worker_at(); the archive process is maintenance's own
};

pid_t pid_of(shared::Database* database, int process) {
  return static_cast<pid_t>(pg_atomic_read_u32(&shared::worker_at(database, process)->pid));
}

bool is_maintenance(int process) { return process == shared::maintenance_index(); }

bool has_lanes(shared::Database* database, pid_t pid) {
  for (int i = 0; i < shared::get()->lanes_each; i++)
    if (pid != 0 && pg_atomic_read_u32(&shared::lane_at(database, i)->worker_pid) == static_cast<uint32>(pid))
      return true;
  return false;
}

bool is_wanted(int process) { return is_maintenance(process) || process < settings::workers_per_database; }

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
  Launcher() : served_(static_cast<std::size_t>(settings::max_databases)) {
    for (Served& each : served_) each.children.resize(static_cast<std::size_t>(shared::maintenance_index()) + 1);
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
    for (int i = 0; i < settings::max_databases; i++) look_after(i);
    start_what_is_missing();
  }

  [[nodiscard]] long sleep_ms() const {
    const TimestampTz now = GetCurrentTimestamp();
    TimestampTz wake = probes_.wake_at(next_scan_);
    for (int i = 0; i < settings::max_databases; i++)
      for (int process = 0; process <= shared::maintenance_index(); process++)
        if (is_missing(i, process)) wake = std::min(wake, start_at(i, process));
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

  [[nodiscard]] Served& served(int index) { return served_[static_cast<std::size_t>(index)]; }
  [[nodiscard]] const Child& child(int index, int process) const {
    return served_[static_cast<std::size_t>(index)].children[static_cast<std::size_t>(process)];
  }

  // Ends what should not run, and notes what has ended.
  void look_after(int index) {
    Served& of = served(index);
    shared::Database* database = shared::database_at(index);
    const Oid oid = pg_atomic_read_u32(&database->oid);
    const bool condemned = std::find(condemned_.begin(), condemned_.end(), oid) != condemned_.end();
    const bool abandoned = pg_atomic_read_u32(&database->abandoned) != 0;
    const bool all = condemned || abandoned || of.database != oid;
    bool any = false;
    // The highest number first: the lowest keep what they have.
    for (int process = shared::maintenance_index(); process >= 0; process--) {
      Child& its = of.children[static_cast<std::size_t>(process)];
      const bool unwanted = all || !is_wanted(process);
      if (!is_running(its.handle)) {
        if (its.handle) ended(its, database, process, of.database == oid);
      } else {
        any = true;
        if (unwanted) TerminateBackgroundWorker(its.handle);
      }
    }
    if (of.database != oid && !any) served_another(of, oid);
    end_strangers(database, condemned || abandoned);
    if ((condemned || abandoned) && !any && !shared::someone_there(database)) give_up(database, oid, condemned);
  }

  // A database lost its slot when our processes found no extension; one created at that very moment is found by a probe.
  void served_another(Served& of, Oid oid) {
    probes_.forget(of.database);
    if (pg_atomic_exchange_u32(&shared::get()->claims_refused, 0) != 0) probes_.forget_all();
    next_scan_ = 0;
    of.database = oid;
    for (Child& each : of.children) each = Child{};
  }

  // What an earlier launcher or a maintenance process started is not ours to wait for, but it wakes us when it leaves.
  static void end_strangers(shared::Database* database, bool all) {
    for (int process = shared::processes_each() - 1; process >= 0; process--) {
      const bool unwanted = all || (process < shared::workers_each() && !is_wanted(process));
      const pid_t pid = pid_of(database, process);
      if (unwanted && pid != 0) kill(pid, SIGTERM);
    }
  }

  // Only an empty slot may be given to another database.
  void give_up(shared::Database* database, Oid oid, bool condemned) {
    if (condemned) {  // dropped, or no longer to be connected to
      pg::call([database] { shared::release(database); });
      std::erase(condemned_, oid);
    } else {
      (void)pg::call([database] { return shared::release_abandoned(database); });
    }
    next_scan_ = 0;
  }

  // Where max_worker_processes is short, publishing comes first: of each database one worker, then the others, and only
  // then maintenance. Room is made in the opposite order.
  void start_what_is_missing() {
    short_of_slots_ = false;
    for (int process = 0; process < shared::workers_each(); process++)
      for (int i = 0; i < settings::max_databases; i++) start_if_due(i, process);
    probes_.turn();
    if (probes_.take_starved() || short_of_slots_) make_room();
    for (int i = 0; i < settings::max_databases; i++) start_if_due(i, shared::maintenance_index());
  }

  [[nodiscard]] bool is_missing(int index, int process) const {
    shared::Database* database = shared::database_at(index);
    const Oid oid = pg_atomic_read_u32(&database->oid);
    // While somebody needs the database alone, its end wakes us.
    const bool alone = pg_atomic_read_u32(&database->evictions) != 0 || pg_atomic_read_u32(&database->abandoned) != 0;
    return OidIsValid(oid) && !alone && served_[static_cast<std::size_t>(index)].database == oid &&
           is_wanted(process) && !is_running(child(index, process).handle) && pid_of(database, process) == 0 &&
           std::find(condemned_.begin(), condemned_.end(), oid) == condemned_.end();
  }

  [[nodiscard]] TimestampTz start_at(int index, int process) const {
    return std::max({child(index, process).next_start, not_before_, room_for(process)});
  }

  // When there may be a slot for it again.
  [[nodiscard]] TimestampTz room_for(int process) const {
    return is_maintenance(process) ? room_at_ : process > 0 ? room_for_more_at_ : 0;
  }

  void start_if_due(int index, int process) {
    const TimestampTz now = GetCurrentTimestamp();
    if (!is_missing(index, process)) return;
    Child& its = served(index).children[static_cast<std::size_t>(process)];
    shared::Database* database = shared::database_at(index);
    if (now >= start_at(index, process)) {
      const bool maintenance = is_maintenance(process);
      its.handle = start_process({.function = maintenance ? "outbox_maintenance_main" : "outbox_worker_main",
                                  .type = maintenance ? maintenance_type : worker_type,
                                  .database = served(index).database,
                                  .slot = index,
                                  .process = process});
      its.starved = !its.handle;
      if (its.handle) return;
      its.next_start = TimestampTzPlusMilliseconds(now, retry_ms);
      short_of_slots_ |= !maintenance;
    } else if (now >= room_for(process)) {
      return;
    }
    show(database, process, no_process_slot);
  }

  static void end_archive_processes() {
    for (int i = 0; i < settings::max_databases; i++)
      if (const pid_t pid = pid_of(shared::database_at(i), shared::archive_index())) kill(pid, SIGTERM);
  }

  // Ends one maintenance process, so that one that publishes can start; where there is none left, one worker of a database
  // that has several, so that another database has one at all.
  void make_room() {
    const TimestampTz now = GetCurrentTimestamp();
    room_at_ = TimestampTzPlusMilliseconds(now, 2 * retry_ms);
    pg_atomic_write_u64(&shared::get()->no_room_until, static_cast<uint64>(room_at_));
    end_archive_processes();
    for (Served& of : served_) {
      BackgroundWorkerHandle* handle = of.children.back().handle;
      if (!is_running(handle)) continue;
      TerminateBackgroundWorker(handle);
      return try_again_soon(now);
    }
    if (!some_database_has_no_worker()) return;
    BackgroundWorkerHandle* handle = one_too_many();
    if (!handle) return;
    room_for_more_at_ = room_at_;
    TerminateBackgroundWorker(handle);
    try_again_soon(now);
  }

  void try_again_soon(TimestampTz now) {
    constexpr long soon_ms = 200;
    const TimestampTz soon = TimestampTzPlusMilliseconds(now, soon_ms);
    probes_.turn_at(soon);
    for (Served& each : served_)
      for (Child& its : each.children)
        if (its.starved && &its != &each.children.back()) its.next_start = soon;
  }

  [[nodiscard]] bool some_database_has_no_worker() const {
    for (int i = 0; i < settings::max_databases; i++)
      if (child(i, 0).starved && is_missing(i, 0)) return true;
    return false;
  }

  // Of the workers beyond a database's first one, one without lanes before others, then the highest number. Null: none.
  [[nodiscard]] BackgroundWorkerHandle* one_too_many() const {
    for (const bool with_lanes : {false, true})
      for (int process = shared::workers_each() - 1; process > 0; process--)
        for (int i = 0; i < settings::max_databases; i++)
          if (is_running(child(i, process).handle) &&
              (with_lanes || !has_lanes(shared::database_at(i), pid_of(shared::database_at(i), process))))
            return child(i, process).handle;
    return nullptr;
  }

  // A process that ends before it has done anything is started again later and later; one that was terminated, at once.
  static void ended(Child& child, shared::Database* database, int process, bool served) {
    pfree(child.handle);
    child.handle = nullptr;
    if (pg_atomic_exchange_u32(&shared::worker_at(database, process)->healthy, 0) != 0)
      child.pause_ms = 0;
    else
      child.pause_ms = std::clamp(child.pause_ms * 2, first_pause_ms, longest_pause_ms);
    child.next_start = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), child.pause_ms);
    if (served) show(database, process, "the process has ended and will be started again, see the server log");
  }

  static void show(shared::Database* database, int process, const char* reason) {
    pg::call([=] {
      shared::set_worker_state(shared::worker_at(database, process), shared::WorkerState::not_running, reason);
    });
  }

  std::vector<Served> served_;
  std::vector<Oid> condemned_;  // in a slot, but not to be served any more
  Probes probes_;
  bool short_of_slots_ = false;
  TimestampTz room_at_ = 0;           // no maintenance before: a process that publishes lacks a slot
  TimestampTz room_for_more_at_ = 0;  // no worker but the first of a database before: one of these lacks a slot
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
