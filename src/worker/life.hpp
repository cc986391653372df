// The life of a process of ours in its database: it takes its place, connects, works turn by turn, gets over errors, leaves.
#pragma once

#include "pg/postgres.hpp"
#include "shared/shared.hpp"

namespace outbox::worker {

// What a process does. C++ code. Lifetime: one process. Thread: the process's only one.
class Job {
 public:
  Job() = default;
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  virtual ~Job() = default;

  // False: there is nothing left to do, ever. `woken`: not only by wake_fd().
  virtual bool turn(bool woken) = 0;
  // How long the loop may sleep, and on what beside the latch.
  [[nodiscard]] virtual long sleep_ms() const = 0;
  [[nodiscard]] virtual int wake_fd() const { return -1; }
  // After an error in turn(), which ended the transaction.
  virtual void back_off(const char* why) = 0;
  // Whether that is why it backs off already.
  [[nodiscard]] virtual bool says(const char* why) const = 0;
  // The process is to end; bounded.
  virtual void finish() {}
};

struct Place {
  shared::Database* database = nullptr;
  shared::Worker* slot = nullptr;
  int process = 0;  // its number among the database's processes
};

// Takes the place that the process was started for, and connects. Ends the process if the place is taken, or if somebody
// needs the database without us. Server code.
Place begin();
// Takes turns until there is nothing left to do; then, and whatever else ends the process, the job is destroyed.
void live(const Place& place, Job* (*make)(const Place& place));

// Set by invalidation callbacks and signals: the catalogs are looked at again.
extern bool control_changed;
// outbox._segment: every change of ours that a process must hear of invalidates it, see outbox._announce().
extern Oid watched_table;
// outbox._segment_event: what becomes of segments is not told to those who enqueue.
extern Oid watched_events;

}  // namespace outbox::worker
