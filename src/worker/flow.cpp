// From the log to Kafka and back: reads windows, hands their records to the publisher, takes its outcomes, writes progress.
#include <algorithm>

#include "claim/server_snapshot.hpp"
#include "worker/flush.hpp"
#include "worker/transaction.hpp"
#include "worker/worker.hpp"

namespace outbox::worker {

void Worker::read() {
  want_read_ = false;
  (void)pg_atomic_exchange_u32(&self_->told, 0);
  if (lanes_.empty() && leaves_.empty()) {
    // Nothing was ever enqueued: what outbox.drain() waits for is done.
    const std::uint64_t sync = pg_atomic_read_u64(&database_->requested_sync);
    if (pg_atomic_exchange_u64(&database_->completed_sync, sync) != sync) ConditionVariableBroadcast(&database_->moved);
    return;
  }
  if (!lanes_.empty()) read_lanes();
}

// What must be known before the snapshot is taken, see shared::Lane.
std::vector<std::uint64_t> Worker::note_finished() {
  std::vector<std::uint64_t> finished;
  finished.reserve(lanes_.size());
  for (const auto& lane : lanes_) {
    shared::Lane* counters = shared::lane_at(database_, lane->number());
    // A reader of the counters finds the time in one of the two.
    if (pg_atomic_read_u64(&counters->oldest) == 0)
      pg_atomic_write_u64(&counters->oldest, pg_atomic_read_u64(&counters->first_waiting));
    pg_memory_barrier();
    pg_atomic_write_u64(&counters->first_waiting, 0);
    finished.push_back(pg_atomic_read_u64(&counters->finished));
  }
  pg_memory_barrier();
  return finished;
}

void Worker::read_lanes() {
  const bool count_only = !situation_.may_publish();
  if (count_only && std::all_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->has_unread(); }))
    return;
  const std::uint64_t sync = pg_atomic_read_u64(&database_->requested_sync);
  const std::vector<std::uint64_t> finished = note_finished();
  const std::size_t before = batches_.size();

  Transaction transaction(false);
  Snapshot snapshot = pg::call([] {
    AcceptInvalidationMessages();
    return RegisterSnapshot(GetLatestSnapshot());
  });
  if (know_all_segments(snapshot)) {
    const claim::TransactionSnapshot now = claim::from_server(snapshot);
    for (std::size_t i = 0; i < lanes_.size(); i++)
      read_lane(*lanes_[i], {snapshot, now, finished[i], sync, leaves_, waiting_, spare_}, count_only);
  } else {
    control_changed = true;
    SetLatch(MyLatch);
  }
  pg::call([snapshot] { UnregisterSnapshot(snapshot); });
  transaction.commit();
  std::size_t found = 0;
  for (std::size_t i = before; i < batches_.size(); i++) found += batches_[i]->records.size();
  pace_.read(found, Clock::now());
  if (batches_.size() == before) ConditionVariableBroadcast(&database_->moved);
}

void Worker::read_lane(Lane& lane, const Lane::Moment& moment, bool count_only) {
  if (lane.leaving()) return;
  if (!count_only && !has_room(lane)) {
    starved_ = true;  // to be read when reports have come
    return;
  }
  starved_ |= !lane.has_unread() && !lane.can_open_window();
  // A lane that goes on in an older window does not look at what is committed since: it must be asked again.
  const bool older = lane.has_unread() || lane.will_resume();
  auto batch = lane.read(moment, count_only ? claim::Budget{0, 0} : budget());
  want_read_ |= (older || lane.has_unread()) && !count_only;
  if (!batch) return;
  // The lane will not read these again, so whatever fails from here on, the batch must be kept.
  batch->first_ticket = next_ticket_;
  for (publish::Record& record : batch->records) record.ticket = next_ticket_++;
  lane.expect(batch.get());
  memory_used_ += batch->cost();
  batches_.push_back(std::move(batch));
}

// A roll is visible to the snapshot before its invalidation reaches us. A segment that we do not know would be stepped
// over, and its messages with it; so the segments are those that the window's own snapshot shows. False: adopted meanwhile,
// or another layout begins.
bool Worker::know_all_segments(Snapshot snapshot) {
  struct Found {
    segment::Row newest;
    bool any;
  };
  const Found found = pg::call([snapshot] {
    Found result{};
    result.any = segment::read_newest(snapshot, &result.newest);
    return result;
  });
  if (found.any && found.newest.generation != group_.generation) return false;
  return !found.any || found.newest.segment == newest_segment_ || look_at_segments(snapshot);
}

void Worker::submit() {
  if (!publisher_ || !situation_.may_publish()) return;
  while (submitting_ < batches_.size()) {
    claim::Batch& batch = *batches_[submitting_];
    if (!batch.flushed) flush_commits_of(batch);
    batch.flushed = true;
    while (batch.submitted < batch.records.size()) {
      const bool open = batch.origins[batch.submitted].fate == claim::Origin::Fate::open;
      if (open && !publisher_->submit(batch.records[batch.submitted])) return;
      batch.submitted++;
    }
    submitting_++;
  }
}

claim::Batch* Worker::batch_of(std::uint64_t ticket) {
  auto after = std::upper_bound(batches_.begin(), batches_.end(), ticket,
                                [](std::uint64_t wanted, const auto& batch) { return wanted < batch->first_ticket; });
  if (after == batches_.begin()) return nullptr;
  claim::Batch* batch = std::prev(after)->get();
  return ticket < batch->first_ticket + batch->records.size() ? batch : nullptr;
}

void Worker::take_reports() {
  if (publisher_) publisher_->poll(outcomes_);
  apply_outcomes();
}

void Worker::apply_outcomes() {
  claim::Batch* batch = nullptr;
  for (const publish::Outcome& outcome : outcomes_) {
    if (!batch || outcome.ticket < batch->first_ticket || outcome.ticket >= batch->first_ticket + batch->records.size())
      batch = batch_of(outcome.ticket);
    if (!batch) continue;
    if (Lane* of = lane(batch->lane)) of->take(*batch, outcome);
    if (outcome.kind == publish::Outcome::Kind::refused) show_failure(outcome.reason.c_str(), batch->lane);
  }
  if (!outcomes_.empty()) {
    for (const auto& lane : lanes_) lane->advance();
    want_read_ |=
        starved_ || std::any_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->has_unread(); });
    starved_ = false;
  }
  outcomes_.clear();
  while (!batches_.empty() && batches_.front()->done()) {
    spare_.put(std::move(batches_.front()));
    batches_.pop_front();
    if (submitting_ > 0) submitting_--;
  }
}

void Worker::append_progress(bool all) {
  const auto now = Clock::now();
  for (const auto& lane : lanes_)
    if (lane->has_progress() && (all || now - lane->last_append >= append_interval))
      if (!append_lane(*lane)) return;
}

// False: the lanes are given up.
bool Worker::append_lane(Lane& lane) {
  receipt::Advance advance = lane.progress();
  Transaction transaction(true);
  const bool appended = receipt::append(advance, group_);
  transaction.commit();
  if (!appended) {
    pg::call([&lane] {
      ereport(LOG, (errmsg("outbox: lane %d was published by another process, claiming it again", lane.number())));
    });
    drop_lanes();
    control_changed = true;
    return false;
  }
  lane.last_append = Clock::now();
  lane.progress_appended(advance.to.seq);
  ConditionVariableBroadcast(&database_->moved);
  return true;
}

Lane* Worker::lane(std::int32_t number) {
  for (const auto& lane : lanes_)
    if (lane->number() == number) return lane.get();
  return nullptr;
}

}  // namespace outbox::worker
