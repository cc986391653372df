#include "worker/lane.hpp"

#include <algorithm>

#include "claim/fetch.hpp"

namespace outbox::worker {

namespace {

// Windows on their way to Kafka at a time: more would only make the first reports' bookkeeping longer.
constexpr std::size_t most_windows = 64;

void subtract(pg_atomic_uint64& counter, std::uint64_t count) {
  pg_atomic_fetch_sub_u64(&counter, static_cast<std::int64_t>(count));
}

}  // namespace

Lane::Lane(std::int32_t number, receipt::Cursor cursor, shared::Lane* counters, std::uint32_t worker)
    : number_(number), counters_(counters), cursor_(std::move(cursor)) {
  // What the lane's last owner has counted still tells how much waits, until we have counted ourselves.
  pg_atomic_write_u32(&counters_->counted, 0);
  pg_atomic_write_u64(&counters_->oldest, 0);
  pg_atomic_write_u32(&counters_->worker_pid, static_cast<std::uint32_t>(MyProcPid));
  pg_atomic_write_u32(&counters_->worker, worker);
  pg_memory_barrier();
}

Lane::~Lane() {
  pg_atomic_write_u32(&counters_->counted, 0);
  pg_atomic_write_u32(&counters_->worker_pid, 0);
  pg_atomic_write_u32(&counters_->worker, 0);
}

Load Lane::load() const {
  Load load;
  for (const claim::Batch* batch : sent_) {
    load.records += batch->records.size();
    load.cost += batch->cost();
  }
  return load;
}

const claim::TransactionSnapshot& Lane::newest_end() const {
  return windows_.empty() ? cursor_.completed : windows_.back().upto;
}

bool Lane::has_unread() const { return !windows_.empty() && !windows_.back().read_out(); }

bool Lane::can_open_window() const { return windows_.size() < most_windows && !has_unread(); }

// Counts the window anew, and returns by how much that is more than before (rows may have been vacuumed).
std::int64_t Lane::walk(Window& window, const claim::TransactionSnapshot& from, const Moment& moment) const {
  std::vector<claim::Leaf> leaves = moment.leaves;
  claim::Walk found =
      claim::walk_window(leaves, moment.snapshot, number_, from, window.upto, window.above, window.ranges);
  const auto more = static_cast<std::int64_t>(found.total - window.unread);
  window.unread = found.total;
  window.list = std::move(found.smallest);
  window.leaves = std::move(leaves);
  window.next = 0;
  return more;
}

// Messages that were counted as committed are counted as unacknowledged from here on.
void Lane::recount(std::int64_t more, std::uint64_t finished) {
  pg_atomic_fetch_add_u32(&counters_->recounts, 1);
  if (pg_atomic_read_u32(&counters_->counted) == 0) pg_atomic_write_u64(&counters_->unacknowledged, 0);
  pg_atomic_fetch_add_u64(&counters_->unacknowledged, more);
  pg_write_barrier();
  pg_atomic_write_u64(&counters_->seen, finished);
  pg_atomic_write_u32(&counters_->counted, 1);
  pg_write_barrier();
  pg_atomic_fetch_add_u32(&counters_->recounts, 1);
}

void Lane::open_window(const Moment& moment) {
  Window window;
  window.number = next_window_;
  const bool resumed = will_resume();
  window.upto = resumed ? *cursor_.window_end : moment.now;
  window.above = resumed ? cursor_.sent_id : 0;
  // A resumed window ends before the present, and what waits for its layout is not in any window: none of that is done when
  // this window is.
  window.sync = resumed || !moment.waiting.empty() ? sync_reached_ : moment.sync;
  // A resumed window can be long, and operators want to know at once how much there is behind it.
  const std::uint64_t behind = resumed ? count(moment.leaves, window.upto, moment) : 0;
  const std::uint64_t waiting = count_waiting(moment);
  if (!resumed) window.unread = counted_behind_;
  const std::int64_t more = walk(window, newest_end(), moment);
  recount(more + static_cast<std::int64_t>(behind + waiting), moment.finished);
  counted_behind_ = behind;
  waiting_counted_ = moment.now;
  // Nothing new: the last one, which is read out, reaches this far. Else a message on which Kafka's answer is awaited would
  // soon have as many empty windows behind it as there may be.
  if (window.unread == 0 && !windows_.empty()) {
    windows_.back().upto = std::move(window.upto);
    windows_.back().sync = std::max(windows_.back().sync, window.sync);
    return;
  }
  next_window_++;
  windows_.push_back(std::move(window));
}

std::uint64_t Lane::count(const std::vector<claim::Leaf>& leaves, const claim::TransactionSnapshot& from,
                          const Moment& moment) const {
  std::vector<claim::Leaf> walked = leaves;
  claim::WindowRanges unused;
  return claim::walk_window(walked, moment.snapshot, number_, from, moment.now, 0, unused, 1).total;
}

// Nobody will fetch these soon, so what is not there (savepoints that were rolled back) must be left out here.
std::uint64_t Lane::count_waiting(const Moment& moment) const {
  if (moment.waiting.empty()) return 0;
  std::vector<claim::Leaf> leaves = moment.waiting;
  claim::WindowRanges ranges;
  std::int64_t above = 0;
  for (std::uint64_t counted = 0;;) {
    claim::Walk part =
        claim::walk_window(leaves, moment.snapshot, number_, waiting_counted_, moment.now, above, ranges);
    const bool last = part.total <= part.smallest.size();
    if (!part.smallest.empty()) above = part.smallest.back().id;
    (void)claim::keep_visible(part.smallest, leaves, moment.snapshot, number_);
    counted += part.smallest.size();
    if (last) return counted;
  }
}

std::unique_ptr<claim::Batch> Lane::read_window(Window& window, const Moment& moment, const claim::Budget& budget) {
  if (window.next == window.list.size()) {
    const claim::TransactionSnapshot& from =
        windows_.size() == 1 ? cursor_.completed : windows_[windows_.size() - 2].upto;
    pg_atomic_fetch_add_u64(&counters_->unacknowledged, walk(window, from, moment));
    if (window.list.empty()) return nullptr;
  }
  auto batch = moment.spare.take();
  batch->lane = number_;
  const std::span<const claim::Candidate> rest = std::span(window.list).subspan(window.next);
  const claim::Fetched fetched =
      claim::fetch(rest, window.leaves, moment.snapshot, number_, window.number, budget, *batch);
  if (fetched.candidates > 0) window.above = rest[fetched.candidates - 1].id;
  window.next += fetched.candidates;
  window.unread -= fetched.candidates;
  window.unsettled += batch->records.size();
  // Candidates of aborted transactions and rolled-back savepoints end here.
  subtract(counters_->unacknowledged, fetched.candidates - batch->records.size());
  if (fetched.rewritten) window.next = window.list.size();
  if (!batch->records.empty()) return batch;
  moment.spare.put(std::move(batch));
  return nullptr;
}

// While paused: what is counted must be there, and the first message tells the age.
void Lane::look_at_unread(const Moment& moment) {
  Window& window = windows_.back();
  const std::size_t before = window.list.size();
  if (window.next == 0 && claim::keep_visible(window.list, window.leaves, moment.snapshot, number_)) {
    const std::size_t fewer = before - window.list.size();
    window.unread -= fewer;
    subtract(counters_->unacknowledged, fewer);
  }
  claim::Batch batch;
  (void)claim::fetch(std::span(window.list).subspan(window.next), window.leaves, moment.snapshot, number_,
                     window.number, claim::Budget{1, 1}, batch);
  oldest_unread_ = batch.origins.empty() ? 0 : batch.origins.front().enqueued_at;
}

std::unique_ptr<claim::Batch> Lane::read(const Moment& moment, const claim::Budget& budget) {
  if (!has_unread()) {
    if (!can_open_window()) return nullptr;
    open_window(moment);
  }
  std::unique_ptr<claim::Batch> batch;
  while (!batch && budget.messages > 0 && has_unread()) batch = read_window(windows_.back(), moment, budget);
  oldest_unread_ = 0;
  if (budget.messages == 0 && has_unread()) look_at_unread(moment);
  if (!batch) close_finished_windows();
  if (!batch) show_oldest();
  return batch;
}

void Lane::expect(claim::Batch* batch) {
  sent_.push_back(batch);
  show_oldest();
}

void Lane::take(claim::Batch& batch, const publish::Outcome& outcome) {
  claim::Origin& origin = batch.origins[outcome.ticket - batch.first_ticket];
  if (origin.fate != claim::Origin::Fate::open) return;
  origin.partition = outcome.partition;
  origin.offset = outcome.offset;
  if (outcome.kind == publish::Outcome::Kind::published) {
    origin.fate = claim::Origin::Fate::published;
    pg_atomic_fetch_add_u64(&counters_->published, 1);
    pg_atomic_fetch_add_u64(&counters_->bytes, origin.bytes);
  } else {
    origin.fate = claim::Origin::Fate::dead;
    pg_atomic_fetch_add_u64(&counters_->failures, 1);
    refused_ahead_.emplace(origin.id,
                           receipt::Refused{origin.id, origin.xid, origin.segment, outcome.error_code, outcome.reason});
  }
  subtract(counters_->unacknowledged, 1);
}

void Lane::settle(const publish::Record& record, const claim::Origin& origin) {
  if (origin.fate == claim::Origin::Fate::published)
    receipts_.add({origin.id, record.topic, origin.partition, origin.offset});
  else if (auto refused = refused_ahead_.extract(origin.id))
    refused_.push_back(std::move(refused.mapped()));
  while (windows_.front().number != origin.window) {
    cursor_.completed = std::move(windows_.front().upto);
    sync_reached_ = std::max(sync_reached_, windows_.front().sync);
    windows_.pop_front();
  }
  Window& window = windows_.front();
  window.unsettled--;
  cursor_.window_end = window.upto;
  cursor_.sent_id = origin.id;
  moved_ = true;
}

void Lane::close_finished_windows() {
  while (!windows_.empty() && windows_.front().read_out() && windows_.front().unsettled == 0) {
    cursor_.completed = std::move(windows_.front().upto);
    cursor_.window_end.reset();
    cursor_.sent_id = 0;
    sync_reached_ = std::max(sync_reached_, windows_.front().sync);
    windows_.pop_front();
  }
  if (!moved_ && sync_told_ < sync_reached_) {
    sync_told_ = sync_reached_;
    pg_atomic_write_u64(&counters_->completed_sync, sync_told_);
  }
}

void Lane::advance() {
  while (!sent_.empty()) {
    claim::Batch& batch = *sent_.front();
    while (!batch.done() && batch.origins[batch.settled].fate != claim::Origin::Fate::open) {
      settle(batch.records[batch.settled], batch.origins[batch.settled]);
      batch.settled++;
    }
    if (!batch.done()) break;
    sent_.pop_front();
  }
  close_finished_windows();
  show_oldest();
}

void Lane::show_oldest() {
  const std::int64_t oldest =
      sent_.empty() ? oldest_unread_ : sent_.front()->origins[sent_.front()->settled].enqueued_at;
  pg_atomic_write_u64(&counters_->oldest, static_cast<std::uint64_t>(oldest));
}

receipt::Advance Lane::progress() const {
  receipt::Advance advance;
  advance.lane = number_;
  advance.to = cursor_;
  advance.messages = receipts_.count();
  advance.first_id = receipts_.smallest_id();
  advance.last_id = receipts_.largest_id();
  advance.receipts = receipts_.bytes();
  advance.refused = &refused_;
  return advance;
}

void Lane::progress_appended(std::int64_t seq) {
  cursor_.seq = seq;
  if (receipts_.count() > 0)
    pg_atomic_write_u64(&counters_->last_published_at, static_cast<std::uint64_t>(GetCurrentTimestamp()));
  receipts_.clear();
  refused_.clear();
  moved_ = false;
  sync_told_ = sync_reached_;
  pg_atomic_write_u64(&counters_->completed_sync, sync_told_);
}

}  // namespace outbox::worker
