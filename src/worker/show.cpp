// What operators see of the worker: its state and reason, the newest failure of a lane, lines in the server log.
#include "pg/error.hpp"
#include "pg/text.hpp"
#include "worker/worker.hpp"

namespace outbox::worker {

using shared::WorkerState;

void Worker::show_failure(const char* text, std::int32_t only_lane) {
  LWLockAcquire(shared::get()->lock, LW_EXCLUSIVE);
  for (const auto& lane : lanes_) {
    if (only_lane >= 0 && lane->number() != only_lane) continue;
    shared::Lane* counters = shared::lane_at(database_, lane->number());
    if (strcmp(counters->last_error, text) != 0) counters->last_error_since = GetCurrentTimestamp();
    pg::copy_text(counters->last_error, text, sizeof counters->last_error);
  }
  LWLockRelease(shared::get()->lock);
}

namespace {

bool is_bad(std::optional<WorkerState> state) {
  return state == WorkerState::backing_off || state == WorkerState::unconfigured || state == WorkerState::incompatible;
}

}  // namespace

bool Worker::says(const char* why) const { return shown_state_ == WorkerState::backing_off && shown_reason_ == why; }

void Worker::show_state() {
  if (control_changed) return;  // not known for sure before the next look
  WorkerState state = situation_.state;
  std::string reason = situation_.reason;
  if (situation_.may_publish()) {
    const publish::Health health =
        publisher_ ? publisher_->health() : publish::Health{publish::Health::State::unconfigured, unconfigured_reason_};
    if (health.state == publish::Health::State::unconfigured) {
      state = WorkerState::unconfigured;
      reason = health.reason;
    } else if (health.state == publish::Health::State::backing_off) {
      state = WorkerState::backing_off;
      reason = health.reason;
    } else if (!out_of_reach_.empty()) {
      state = WorkerState::backing_off;
      reason = out_of_reach_;
    } else {
      state = idle() ? WorkerState::idle : WorkerState::running;
    }
  }
  if (shown_state_ == state && shown_reason_ == reason) return;
  const bool was_bad = is_bad(shown_state_);
  if (is_bad(state) && reason != out_of_reach_) show_failure(reason.c_str());
  // The first reason may be only what was seen first: that all brokers are down, before one says that it lets nobody in.
  constexpr std::chrono::seconds between_reasons{10};
  const bool other_reason = was_bad && shown_state_ == state && Clock::now() - reason_logged_ >= between_reasons;
  if (is_bad(state) && (!was_bad || shown_state_ != state || other_reason)) {
    reason_logged_ = Clock::now();
    const char* text = reason.c_str();
    const char* name = shared::state_name(state);
    const int level = state == WorkerState::incompatible ? WARNING : LOG;
    pg::call([=] { ereport(level, (errmsg("outbox worker is %s: %s", name, text))); });
  } else if (was_bad && (state == WorkerState::running || state == WorkerState::idle)) {
    pg::call([] { ereport(LOG, (errmsg("outbox worker publishes again"))); });
  }
  shown_state_ = state;
  shown_reason_ = reason;
  shared::set_worker_state(self_, state, reason.c_str());
}

void Worker::write_log() {
  if (!publisher_) return;
  for (const publish::LogLine& line : publisher_->take_log()) {
    const char* text = line.text.c_str();
    const int level = line.severity <= 4 ? LOG : DEBUG1;
    pg::call([=] { ereport(level, (errmsg_internal("librdkafka: %s", text))); });
  }
}

}  // namespace outbox::worker
