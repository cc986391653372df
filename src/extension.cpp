// The library's entry: magic, settings, hooks, launcher. Nothing else.
#include "enqueue/message.hpp"
#include "pg/postgres.hpp"
#include "settings.hpp"
#include "shared/shared.hpp"
#include "worker/process.hpp"

extern "C" {
#include <unistd.h>

PG_MODULE_MAGIC;
PGDLLEXPORT void _PG_init(void);
}

void _PG_init(void) {
  using namespace outbox;
  settings::define();
  enqueue::define_commit_callbacks();
  enqueue::define_open_segment_callback();
  if (!process_shared_preload_libraries_in_progress) return;
  // The signal file is gone after a promotion; that it was there at the start is what tells a promotion from a copy.
  shared::set_started_as_standby(access("standby.signal", F_OK) == 0);
  shared::request();
  worker::define_hooks();
  worker::register_launcher();
}
