// The processes of the extension and how they come and go.
#pragma once

#include "pg/postgres.hpp"

namespace outbox::worker {

// From _PG_init, in shared_preload_libraries.
void register_launcher();
void define_hooks();

// Before a process of ours connects: its transactions are what it needs, whatever the server, the database or the role have
// set. Serializable, read-only and deferrable ones would wait for others. Server code.
void fix_transactions();

// As pg_stat_activity and outbox.workers show them.
constexpr const char* worker_type = "outbox worker";
constexpr const char* maintenance_type = "outbox maintenance";
constexpr const char* archive_type = "outbox archive";

struct Start {
  const char* function;
  const char* type;
  Oid database;
  int32 slot = 0;     // of the database in shared memory
  int32 process = 0;  // its place among the database's processes
};
// What the new process finds in bgw_extra.
struct Given {
  Oid database;
  int32 slot;
  int32 process;
};
Given given();
constexpr const char* no_process_slot = "all slots of max_worker_processes are in use: raise it and restart the server";
// Null, and a warning now and then, if max_worker_processes is used up. C++ code.
BackgroundWorkerHandle* start_process(const Start& start);
// Also when it is only about to start. False for null.
bool is_running(BackgroundWorkerHandle* handle);

}  // namespace outbox::worker
