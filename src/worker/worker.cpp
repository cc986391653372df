#include "worker/worker.hpp"

#include <malloc.h>

#include <algorithm>

#include "pg/lookup.hpp"

namespace outbox::worker {

using namespace std::chrono_literals;
using shared::WorkerState;

namespace {

// Read and not yet in the progress log, over all lanes. What Kafka's queue takes is bounded by librdkafka's settings.
constexpr Load most{50'000, std::size_t{64} * 1024 * 1024};

bool is_below(const Load& load, std::size_t part) {
  return load.records < most.records / part && load.cost < most.cost / part;
}

// After so much the C library is asked for what it keeps; by itself it gives back only what lies at the heap's end.
constexpr std::size_t worth_giving_back = std::size_t{8} * 1024 * 1024;

long ms_until(Clock::time_point when) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(when - Clock::now()).count();
  return std::max<long>(left, 0);
}

}  // namespace

Worker::Worker(shared::Database* database, int number)
    : database_(database),
      number_(number),
      self_(shared::worker_at(database, number)),
      progress_noted_(pg_atomic_read_u32(&database->progress_wanted)) {}
Worker::~Worker() = default;

int Worker::wake_fd() const { return publisher_ ? publisher_->wake_fd() : -1; }

// Each lane has a part of the room for itself, so that one whose messages wait for Kafka's answer does not hold up others; of
// what they leave it may take half.
bool Worker::has_room(const Lane& lane) const {
  const Load load = lane.load();
  if (is_below(load, lanes_.size())) return true;
  Load all;
  for (const auto& batch : batches_) {
    all.records += batch->records.size();
    all.cost += batch->cost();
  }
  return is_below(all, 1) && is_below(load, 2);
}

// What one lane reads at a time fits into its part.
claim::Budget Worker::budget() const {
  claim::Budget each;
  each.cost = std::min(each.cost, most.cost / lanes_.size());
  return each;
}

// While paused the log is read for the count of what is pending, not for messages.
bool Worker::may_read() const {
  return situation_.state == WorkerState::paused ||
         (situation_.may_publish() &&
          (lanes_.empty() || std::ranges::any_of(lanes_, [this](const auto& lane) { return has_room(*lane); })));
}

// What is left of a window needs no new snapshot.
Clock::time_point Worker::next_read() const {
  const bool within = std::any_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->has_unread(); });
  return within ? Clock::time_point{} : pace_.next();
}

bool Worker::idle() const {
  return batches_.empty() && std::all_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->idle(); });
}

// A commit that came since the last read. Its latch may be gone: a wait for a lock or a page inside a turn resets it too.
bool Worker::told() const { return pg_atomic_read_u32(&self_->told) != 0; }

long Worker::sleep_ms() const {
  const auto now = Clock::now();
  Clock::time_point wake = now + look_interval;
  if (publisher_)
    if (const auto poll = publisher_->next_poll()) wake = std::min(wake, *poll);
  if (retry_at_ > now) return ms_until(std::min(wake, retry_at_));
  if (control_changed || next_look_ <= now) return 0;
  wake = std::min(wake, next_look_);
  if ((want_read_ || told()) && may_read()) wake = std::min(wake, next_read());
  for (const auto& lane : lanes_)
    if (lane->has_progress()) wake = std::min(wake, lane->last_append + append_interval);
  return ms_until(wake);
}

bool Worker::turn(bool woken) {
  if (woken || told()) want_read_ = true;
  if (pg_atomic_read_u32(&database_->workers_changed) != workers_seen_) control_changed = true;
  if (retry_at_ <= Clock::now()) {
    if (control_changed || next_look_ <= Clock::now()) look();
    if (control_changed && !situation_.extension_gone) look();  // what we held is forgotten, now look at what is there
    if (situation_.extension_gone) return false;
    serve_segment_request();
    const std::uint32_t wanted = pg_atomic_read_u32(&database_->progress_wanted);
    if (wanted != progress_noted_ && situation_.may_publish()) want_read_ = true;
    if (want_read_ && may_read() && next_read() <= Clock::now()) {
      read();
      note_completed(wanted);
    }
  }
  submit();
  take_reports();
  if (retry_at_ <= Clock::now()) {
    append_progress(false);
    give_up_left_lanes();
    tell_maintenance();
    failures_ = 0;
  }
  if (memory_used_ >= worth_giving_back && idle()) give_back_memory();
  write_log();
  show_state();
  return true;
}

void Worker::back_off(const char* why) {
  if (claiming_) drop_lanes();
  const int step = std::min(failures_++, 7);
  const long base_ms = std::min(250L << step, 30'000L);
  const long jitter_ms = static_cast<long>(Clock::now().time_since_epoch().count() % (base_ms / 2));
  retry_at_ = Clock::now() + std::chrono::milliseconds(base_ms / 2 + jitter_ms);
  control_changed = true;
  shown_state_ = WorkerState::backing_off;
  shown_reason_ = why;
  shared::set_worker_state(self_, WorkerState::backing_off, why);
  show_failure(why);
}

void Worker::finish() {
  if (publisher_) {
    publisher_->close(500ms, outcomes_);
    publisher_.reset();
    apply_outcomes();
  }
  append_progress(true);
}

// What an operator sees of the process between two rushes is what it needs then.
void Worker::give_back_memory() {
  memory_used_ = 0;
  spare_.clear();
  outcomes_ = std::vector<publish::Outcome>();
  if (publisher_) publisher_->give_back_memory();
  malloc_trim(0);
}

// Nobody writes to a rolled segment any more, but the progress log may not say yet that the lanes are past that moment.
// After a read: the snapshot that is written down must be later than the wish.
void Worker::note_completed(std::uint32_t wanted) {
  if (wanted == progress_noted_ || !situation_.may_publish()) return;
  progress_noted_ = wanted;
  for (const auto& lane : lanes_) {
    // One that waits for its layout has nothing to say, and one that is busy writes progress by itself.
    const bool of_layout = std::ranges::find(layout_lanes_, lane->number()) != layout_lanes_.end();
    if (!of_layout || !lane->idle()) continue;
    lane->note_completed();
    progress_told_ = false;
  }
}

void Worker::tell_maintenance() {
  const bool behind = std::any_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->has_progress(); });
  if (progress_told_ || behind) return;
  progress_told_ = true;
  shared::wake_maintenance(database_, shared::told_of_progress);
}

}  // namespace outbox::worker
