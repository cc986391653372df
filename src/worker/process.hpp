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

struct Start {
  const char* function;
  const char* type;  // as pg_stat_activity shows it
  Oid database;
  int32 slot;
};
// Null, and a warning now and then, if max_worker_processes is used up. C++ code.
BackgroundWorkerHandle* start_process(const Start& start);
// Also when it is only about to start. False for null.
bool is_running(BackgroundWorkerHandle* handle);

}  // namespace outbox::worker
