// Which databases have the extension? The launcher is connected to none, so a short-lived process looks into each of them
// once. One at a time: a server can have thousands of databases.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "worker/process.hpp"

namespace outbox::worker {

class Probes {
 public:
  // All there are to look into; the known ones are not looked into again.
  void know(const std::vector<Oid>& databases);
  void turn();
  // When turn() wants to be called, at the latest.
  [[nodiscard]] TimestampTz wake_at(TimestampTz latest) const;

  // Whether there was no slot of max_worker_processes for one since the last call.
  [[nodiscard]] bool take_starved() { return std::exchange(starved_, false); }
  void turn_at(TimestampTz when) { next_ = std::min(next_, when); }

  // Looked into again with the next know().
  void forget(Oid database) { std::erase(done_, database); }
  void forget_all() { done_.clear(); }

 private:
  struct Waiting {
    Oid database = InvalidOid;
    TimestampTz due = 0;
    long pause_ms = 0;
  };
  void ended(TimestampTz now);
  std::vector<Waiting>::iterator find(Oid database);

  std::vector<Oid> done_;
  std::vector<Waiting> waiting_;
  BackgroundWorkerHandle* probe_ = nullptr;
  Oid probing_ = InvalidOid;
  TimestampTz next_ = 0;
  bool starved_ = false;
};

}  // namespace outbox::worker
