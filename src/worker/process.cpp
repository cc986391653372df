// Our processes: how they are registered and started, and what all of them set for themselves.
#include "worker/process.hpp"

#include "pg/error.hpp"
#include "shared/shared.hpp"

namespace outbox::worker {

void register_launcher() {
  BackgroundWorker worker{};
  worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
  worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
  worker.bgw_restart_time = 1;
  strlcpy(worker.bgw_library_name, "outbox", sizeof worker.bgw_library_name);
  strlcpy(worker.bgw_function_name, "outbox_launcher_main", sizeof worker.bgw_function_name);
  strlcpy(worker.bgw_name, "outbox launcher", sizeof worker.bgw_name);
  strlcpy(worker.bgw_type, "outbox launcher", sizeof worker.bgw_type);
  RegisterBackgroundWorker(&worker);
}

void fix_transactions() {
  auto set = [](const char* name, const char* value) { SetConfigOption(name, value, PGC_SUSET, PGC_S_OVERRIDE); };
  set("default_transaction_isolation", "read committed");
  set("default_transaction_read_only", "off");
  set("default_transaction_deferrable", "off");
  if (GetConfigOption("transaction_timeout", true, false)) set("transaction_timeout", "0");  // PostgreSQL 17
}

namespace {

// Server code. The handle is to last.
bool start_in_top_context(const Start& start, BackgroundWorkerHandle** handle) {
  BackgroundWorker worker{};
  worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
  worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
  worker.bgw_restart_time = BGW_NEVER_RESTART;  // the launcher restarts it
  worker.bgw_notify_pid = MyProcPid;
  strlcpy(worker.bgw_library_name, "outbox", sizeof worker.bgw_library_name);
  strlcpy(worker.bgw_function_name, start.function, sizeof worker.bgw_function_name);
  pg_snprintf(worker.bgw_name, sizeof worker.bgw_name, "%s for database %u", start.type, start.database);
  strlcpy(worker.bgw_type, start.type, sizeof worker.bgw_type);
  const Given extra{start.database, start.slot, start.process};
  static_assert(sizeof extra <= sizeof worker.bgw_extra);
  memcpy(worker.bgw_extra, &extra, sizeof extra);
  MemoryContext before = MemoryContextSwitchTo(TopMemoryContext);
  const bool started = RegisterDynamicBackgroundWorker(&worker, handle);
  MemoryContextSwitchTo(before);
  return started;
}

// There is no use in one for each database and each attempt.
void warn_no_slot() {
  constexpr long interval_ms = 600'000;
  static TimestampTz next = 0;
  const TimestampTz now = GetCurrentTimestamp();
  if (now < next) return;
  next = TimestampTzPlusMilliseconds(now, interval_ms);
  ereport(WARNING, (errmsg("outbox could not start a background worker"),
                    errdetail("All slots of max_worker_processes (%d) are in use.", max_worker_processes),
                    errhint("Raise max_worker_processes and restart the server.")));
}

}  // namespace

Given given() {
  Given extra;
  memcpy(&extra, MyBgworkerEntry->bgw_extra, sizeof extra);
  return extra;
}

BackgroundWorkerHandle* start_process(const Start& start) {
  return pg::call([&start] {
    BackgroundWorkerHandle* handle = nullptr;
    if (start_in_top_context(start, &handle)) return handle;
    warn_no_slot();
    return static_cast<BackgroundWorkerHandle*>(nullptr);
  });
}

bool is_running(BackgroundWorkerHandle* handle) {
  pid_t pid;
  if (!handle) return false;
  const BgwHandleStatus status = GetBackgroundWorkerPid(handle, &pid);
  return status == BGWH_STARTED || status == BGWH_NOT_YET_STARTED;
}

}  // namespace outbox::worker
