// The maintenance process of one database: looks after the segments of the log, in short transactions, and waits for nobody.
// It publishes nothing, so whatever holds it up holds up no message. C++ code.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "segment/upkeep.hpp"
#include "worker/life.hpp"
#include "worker/situation.hpp"

namespace outbox::worker {

class Maintenance final : public Job {
 public:
  explicit Maintenance(const Place& place) : database_(place.database), self_(place.slot) {}

  bool turn(bool woken) override;
  [[nodiscard]] long sleep_ms() const override;
  void back_off(const char* why) override;
  [[nodiscard]] bool says(const char* why) const override;

 private:
  using Clock = std::chrono::steady_clock;

  void look();
  void mark_drained();
  void summarize();
  void show_state();
  [[nodiscard]] bool may_work() const { return situation_.state == shared::WorkerState::running; }

  shared::Database* database_;
  shared::Worker* self_;
  Situation situation_;
  std::optional<shared::WorkerState> shown_state_;
  std::string shown_reason_;

  std::int32_t generation_ = 0;
  std::vector<std::int32_t> segments_;  // that are not drained
  bool rolled_ = false;                 // one of them is closed
  bool active_ = true;                  // something was enqueued since the last summary
  segment::Upkeep upkeep_;

  Clock::time_point next_look_{};
  Clock::time_point next_drained_{};
  Clock::time_point next_summary_{};
  Clock::time_point retry_at_{};
  int failures_ = 0;
};

}  // namespace outbox::worker
