// The process around the worker that publishes.
#include <malloc.h>

#include "worker/worker.hpp"

extern "C" PGDLLEXPORT void outbox_worker_main(Datum argument);

namespace outbox::worker {

namespace {

// The C library raises the size from which it maps memory of its own, to that of the largest block that was freed. Then
// blocks of batches lie between small ones, and cannot go back when a rush is over.
void keep_large_blocks_apart() { (void)mallopt(M_MMAP_THRESHOLD, 128 * 1024); }

}  // namespace
}  // namespace outbox::worker

void outbox_worker_main(Datum) {
  using namespace outbox;
  worker::keep_large_blocks_apart();
  const worker::Place place = worker::begin();
  worker::live(place,
               [](const worker::Place& its) -> worker::Job* { return new worker::Worker(its.database, its.process); });
  // DROP EXTENSION
  pg_atomic_write_u32(&place.database->abandoned, 1);
  proc_exit(0);
}
