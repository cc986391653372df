#include "worker/maintenance.hpp"

#include <algorithm>

#include "enqueue/message.hpp"
#include "pg/lookup.hpp"
#include "receipt/progress.hpp"
#include "segment/segment.hpp"
#include "worker/transaction.hpp"

extern "C" PGDLLEXPORT void outbox_maintenance_main(Datum argument);

namespace outbox::worker {

using namespace std::chrono_literals;
using shared::WorkerState;

namespace {

// Everything is announced; this is for what is not.
constexpr std::chrono::minutes look_interval{5};
constexpr std::chrono::seconds drained_interval{1};
constexpr std::chrono::seconds summary_interval{5};
constexpr std::chrono::milliseconds summary_beside_messages{250};  // some milliseconds of work each

}  // namespace

bool Maintenance::turn(bool) {
  if (retry_at_ > Clock::now()) return true;
  if (pg_atomic_exchange_u32(&self_->told, 0) != 0) active_ = true;
  if (control_changed || next_look_ <= Clock::now()) look();
  if (situation_.extension_gone) return false;
  if (may_work()) {
    if (rolled_ && next_drained_ <= Clock::now()) mark_drained();
    if (active_ && next_summary_ <= Clock::now()) summarize();
  }
  failures_ = 0;
  show_state();
  return true;
}

long Maintenance::sleep_ms() const {
  const auto now = Clock::now();
  Clock::time_point wake = next_look_;
  if (retry_at_ > now) {
    wake = retry_at_;
  } else if (control_changed) {
    wake = now;
  } else if (may_work()) {
    if (rolled_) wake = std::min(wake, next_drained_);
    if (active_) wake = std::min(wake, next_summary_);
  }
  return std::max<long>(std::chrono::ceil<std::chrono::milliseconds>(wake - now).count(), 0);
}

void Maintenance::look() {
  control_changed = false;
  next_look_ = Clock::now() + look_interval;
  known_owner = InvalidOid;
  Transaction transaction(true);
  watched_table = pg::call([] { return pg::relation_oid("_segment"); });
  Look found = pg::call([] { return look_at_catalogs(); });
  found.paused = false;  // outbox.pause() is about publishing
  situation_ = situation_of(found);
  generation_ = found.generation;
  segments_.clear();
  rolled_ = false;
  if (may_work() && !situation_.extension_gone) {
    const segment::Rows rows = pg::call([] { return segment::read_all(GetActiveSnapshot()); });
    for (int i = 0; i < rows.count; i++) {
      const segment::Row& row = rows.rows[i];
      if (row.generation != generation_ || row.state == segment::State::drained) continue;
      segments_.push_back(row.segment);
      rolled_ |= row.state == segment::State::rolled;
    }
  }
  transaction.commit();
}

void Maintenance::mark_drained() {
  next_drained_ = Clock::now() + drained_interval;
  Transaction transaction(true);
  const segment::Drained result = upkeep_.mark_drained(generation_);
  transaction.commit();
  if (result.marked > 0) control_changed = true;
  if (!result.behind) return;
  pg_atomic_fetch_add_u32(&database_->progress_wanted, 1);
  shared::wake_worker(database_);
}

// The indexes by which a message is found by its id.
void Maintenance::summarize() {
  bool all = true;
  for (const std::int32_t number : segments_) {
    Transaction transaction(true);
    const auto table = [number](const char* base) {
      return pg::call([number, base] { return pg::leaf_oid(base, number); });
    };
    all &= upkeep_.summarize(table("_message"), {enqueue::Column::id});
    all &= upkeep_.summarize(table("_progress"), {receipt::first_id_column, receipt::last_id_column});
    transaction.commit();
    if (!all) break;
  }
  active_ = !all;
  next_summary_ = Clock::now();
  if (all)
    next_summary_ += summary_interval;
  else if (pg_atomic_read_u32(&self_->told) != 0)  // messages come first
    next_summary_ += summary_beside_messages;
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
  if (may_work() && !rolled_ && !active_) state = WorkerState::idle;
  if (shown_state_ == state && shown_reason_ == situation_.reason) return;
  if (shown_state_ == WorkerState::backing_off) pg::call([] { ereport(LOG, (errmsg("outbox maintenance goes on"))); });
  shown_state_ = state;
  shown_reason_ = situation_.reason;
  shared::set_worker_state(self_, state, shown_reason_.c_str());
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
