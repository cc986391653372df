// The maintenance process of one database: looks after the segments of the log, in short transactions, and waits for nobody.
// It publishes nothing, so whatever holds it up holds up no message. What takes long it leaves to the archive process. C++ code.
//
//   open ──roll──► rolled ──no writer left──► quiet ──lanes are past that──► drained ──archive──► archived
//                                                                                └──── retention ────► dropped, detached
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "segment/log.hpp"
#include "segment/upkeep.hpp"
#include "worker/life.hpp"
#include "worker/process.hpp"
#include "worker/retry.hpp"
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
  using Clock = Retry::Clock;

  // maintenance.cpp
  void hear();
  void look();
  void look_at_log();
  void work();
  void show_state();
  [[nodiscard]] bool may_work() const { return situation_.state == shared::WorkerState::running; }
  [[nodiscard]] Clock::time_point next_work() const;

  // tend.cpp
  void roll_if_due();
  void roll(std::int32_t segment);
  void mark_quiet();
  void mark_drained();
  void drop_expired();
  [[nodiscard]] bool ends_its_layout(const segment::Entry& entry) const;
  void forget_catalogs();
  bool drop(const segment::Entry& entry);
  void start_archive();
  void forget_gone();
  void summarize();
  void explain();
  void explain_wait(std::int32_t segment);
  void explain_keep(std::int32_t segment);
  [[nodiscard]] std::string waits_of(std::int32_t segment) const;
  [[nodiscard]] const segment::Entry* open() const;
  [[nodiscard]] bool is_rolled(const segment::Entry& entry, bool quiet) const;
  [[nodiscard]] bool any_rolled(bool quiet) const;
  [[nodiscard]] std::optional<TimestampTz> expiry(const segment::Entry& entry) const;
  [[nodiscard]] Clock::time_point next_expiry() const;
  [[nodiscard]] Clock::time_point old_at() const;
  [[nodiscard]] bool archive_is_running() const;
  [[nodiscard]] Clock::time_point next_function_call() const;
  [[nodiscard]] std::int32_t first_to_keep() const;
  [[nodiscard]] bool any_to_keep() const { return first_to_keep() != 0; }
  [[nodiscard]] bool function_wanted() const;

  shared::Database* database_;
  shared::Worker* self_;
  Situation situation_;
  std::optional<shared::WorkerState> shown_state_;
  std::string shown_reason_;

  // The log as of the last look.
  std::vector<segment::Entry> entries_;  // `moment` says only whether there is one
  std::int32_t generation_ = 0;
  std::int32_t open_segment_ = 0;
  bool gone_ = false;                       // there are rows of segments that are gone
  TimestampTz function_registered_at_ = 0;  // 0: there is none
  std::int64_t archived_ = 0;               // how often something was archived or has failed

  bool measure_ = true;  // something was enqueued since the open segment was measured
  bool open_is_empty_ = true;
  bool open_is_large_ = false;
  bool summary_wanted_ = true;
  BackgroundWorkerHandle* archive_ = nullptr;
  segment::Upkeep upkeep_;

  // What cannot be done just now: numbers of segments, 0 for none.
  std::int32_t roll_blocked_ = 0;
  std::int32_t drop_blocked_ = 0;
  int dropped_ = 0;  // since the caches were emptied

  bool archive_blocked_ = false;  // its process cannot be started
  bool keep_tried_ = false;       // it has ended, and nothing has been archived since
  std::string error_;             // why a segment could not be dropped
  std::string reason_;
  bool explain_again_ = false;  // it may have changed since it was written
  bool in_trouble_ = false;     // more than that somebody is in the way

  Clock::time_point next_look_{};
  Clock::time_point next_measure_{};
  Clock::time_point next_summary_{};
  Clock::time_point next_explanation_{};
  Retry roll_{std::chrono::milliseconds{200}, std::chrono::seconds{5}};
  Retry quiet_{std::chrono::milliseconds{100}, std::chrono::seconds{5}};
  Retry drained_{std::chrono::milliseconds{100}, std::chrono::seconds{5}};
  Retry ask_{std::chrono::milliseconds(100), std::chrono::seconds(5)};  // for progress
  Retry drop_{std::chrono::milliseconds{200}, std::chrono::seconds{5}};
  Retry archive_start_{std::chrono::milliseconds{200}, std::chrono::seconds{60}};
  Retry forget_{std::chrono::seconds{10}, std::chrono::minutes{5}};
  Clock::time_point retry_at_{};
  int failures_ = 0;
};

}  // namespace outbox::worker
