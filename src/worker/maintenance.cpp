#include "worker/maintenance.hpp"

#include <algorithm>

#include "pg/lookup.hpp"
#include "segment/archive.hpp"
#include "worker/transaction.hpp"

extern "C" PGDLLEXPORT void outbox_maintenance_main(Datum argument);

namespace outbox::worker {

using namespace std::chrono_literals;
using shared::WorkerState;

namespace {

// Everything is announced; this is for what is not.
constexpr std::chrono::minutes look_interval{5};

}  // namespace

bool Maintenance::turn(bool) {
  if (retry_at_ > Clock::now()) return true;
  hear();
  if (control_changed || next_look_ <= Clock::now()) look();
  if (situation_.extension_gone) return false;
  if (may_work()) work();
  failures_ = 0;
  show_state();
  return true;
}

void Maintenance::hear() {
  const std::uint32_t told = pg_atomic_exchange_u32(&self_->told, 0);
  if ((told & shared::told_of_messages) != 0) measure_ = summary_wanted_ = true;
  if ((told & shared::told_of_progress) != 0) drained_.at_once();
  if ((told & shared::told_of_archive) != 0) control_changed = true;
}

void Maintenance::look() {
  control_changed = false;
  next_look_ = Clock::now() + look_interval;
  known_owner = InvalidOid;
  entries_.clear();
  Transaction transaction(true);
  watched_table = pg::call([] { return pg::relation_oid("_segment"); });
  watched_events = pg::call([] { return pg::relation_oid("_segment_event"); });
  Look found = pg::call([] { return look_at_catalogs(); });
  found.paused = false;  // outbox.pause() is about publishing
  situation_ = situation_of(found);
  generation_ = found.generation;
  if (may_work() && !situation_.extension_gone) look_at_log();
  transaction.commit();
  measure_ = true;
  for (Retry* retry : {&quiet_, &drained_}) retry->at_once();
}

void Maintenance::look_at_log() {
  const segment::Log log = pg::call([] { return segment::read_log(GetActiveSnapshot()); });
  const auto function = pg::call([] { return segment::read_archive_function(GetActiveSnapshot()); });
  if (function.registered_at != function_registered_at_) archive_start_.at_once();
  function_registered_at_ = function.registered_at;
  std::vector<Oid> tables;
  std::int64_t archived = 0;
  for (int i = 0; i < log.count; i++) {
    segment::Entry entry = log.entries[i];
    archived += entry.failures + (entry.kept ? 1 : 0) + (entry.taken ? 1 : 0) + (entry.drained_at != 0 ? 1 : 0);
    entry.moment = entry.moment != 0 ? 1 : 0;  // the value itself goes with the transaction
    tables.insert(tables.end(), {entry.messages, entry.progress});
    entries_.push_back(entry);
  }
  gone_ = log.gone_in_all > 0;
  if (archived != archived_) {
    archive_start_.at_once();
    keep_tried_ = false;
  }
  archived_ = archived;
  upkeep_.keep_only(tables);
  const std::int32_t number = open() ? open()->row.segment : 0;
  if (number != open_segment_) {
    open_segment_ = number;
    open_is_empty_ = true;
    open_is_large_ = false;
    roll_.at_once();
  }
}

void Maintenance::work() {
  roll_if_due();
  if (any_rolled(false) && quiet_.due()) mark_quiet();
  if (any_rolled(true) && drained_.due()) mark_drained();
  drop_expired();
  start_archive();
  if (gone_ && forget_.due()) forget_gone();
  if (summary_wanted_ && next_summary_ <= Clock::now()) summarize();
  explain();
}

Maintenance::Clock::time_point Maintenance::next_work() const {
  Clock::time_point next = Clock::time_point::max();
  const auto at = [&next](bool wanted, Clock::time_point when) {
    if (wanted) next = std::min(next, when);
  };
  at(measure_ && open(), next_measure_);
  at(open() && !open_is_empty_, std::max(roll_.at(), open_is_large_ ? Clock::time_point{} : old_at()));
  at(any_rolled(false), quiet_.at());
  at(any_rolled(true), drained_.at());
  at(next_expiry() != Clock::time_point::max(), std::max(drop_.at(), next_expiry()));
  if (!archive_is_running()) {  // its end wakes us
    at(any_to_keep(), archive_start_.at());
    at(next_function_call() != Clock::time_point::max(), std::max(archive_start_.at(), next_function_call()));
  }
  at(gone_, forget_.at());
  at(explain_again_, next_explanation_);
  at(summary_wanted_, next_summary_);
  return next;
}

long Maintenance::sleep_ms() const {
  const auto now = Clock::now();
  Clock::time_point wake = next_look_;
  if (retry_at_ > now)
    wake = retry_at_;
  else if (control_changed)
    wake = now;
  else if (may_work())
    wake = std::min(wake, next_work());
  return std::max<long>(std::chrono::ceil<std::chrono::milliseconds>(wake - now).count(), 0);
}

void Maintenance::back_off(const char* why) {
  constexpr long longest_ms = 30'000;
  const long pause_ms = std::min(250L << std::min(failures_++, 7), longest_ms);
  retry_at_ = Clock::now() + std::chrono::milliseconds(pause_ms);
  control_changed = true;
  shown_state_ = WorkerState::backing_off;
  shown_reason_ = why;
  shared::set_worker_state(self_, WorkerState::backing_off, why);
}

bool Maintenance::says(const char* why) const {
  return shown_state_ == WorkerState::backing_off && shown_reason_ == why;
}

void Maintenance::show_state() {
  WorkerState state = situation_.state;
  std::string reason = situation_.reason;
  if (may_work()) {
    const bool at_rest = !any_rolled(false) && !any_rolled(true) && !any_to_keep() && reason_.empty();
    state = in_trouble_ ? WorkerState::backing_off : at_rest ? WorkerState::idle : WorkerState::running;
    reason = reason_;
  }
  if (shown_state_ == state && shown_reason_ == reason) return;
  if (shown_state_ == WorkerState::backing_off && state != WorkerState::backing_off)
    pg::call([] { ereport(LOG, (errmsg("outbox maintenance goes on"))); });
  shown_state_ = state;
  shown_reason_ = reason;
  shared::set_worker_state(self_, state, reason.c_str());
}

}  // namespace outbox::worker

void outbox_maintenance_main(Datum) {
  using namespace outbox;
  const worker::Place place = worker::begin();
  worker::live(place, [](const worker::Place& its) -> worker::Job* { return new worker::Maintenance(its); });
  // DROP EXTENSION
  pg_atomic_write_u32(&place.database->abandoned, 1);
  proc_exit(0);
}
