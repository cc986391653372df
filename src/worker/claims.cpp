// Which lanes this worker has. The workers of a database share them out: each computes its own part from who is there, takes
// what is free, and gives up what is too much as soon as nothing of it is on its way to Kafka.
#include <algorithm>

#include "claim/claim.hpp"
#include "pg/error.hpp"
#include "receipt/state.hpp"
#include "worker/worker.hpp"

namespace outbox::worker {

using namespace std::chrono_literals;

namespace {

bool is_there(shared::Database* database, int worker) {
  return pg_atomic_read_u32(&shared::worker_at(database, worker)->pid) != 0;
}

}  // namespace

// The first workers have one more where the lanes cannot be shared out evenly.
std::size_t Worker::fair_share() const {
  std::size_t workers = 0;
  std::size_t before = 0;
  for (int i = 0; i < shared::workers_each(); i++) {
    if (i != number_ && !is_there(database_, i)) continue;
    workers++;
    if (i < number_) before++;
  }
  return wanted_lanes_.size() / workers + (before < wanted_lanes_.size() % workers ? 1 : 0);
}

bool Worker::some_lane_is_free() const {
  return std::ranges::any_of(wanted_lanes_, [this](std::int32_t lane) {
    return pg_atomic_read_u32(&shared::lane_at(database_, lane)->worker_pid) == 0;
  });
}

// Since outbox.max_lanes was lowered there is no shared memory for some: nobody can publish these, and that is to be said.
void Worker::leave_out_of_reach() {
  const std::int32_t most = shared::get()->lanes_each;
  out_of_reach_.clear();
  if (wanted_lanes_.empty() || wanted_lanes_.back() < most) return;
  out_of_reach_ = "lane " + std::to_string(wanted_lanes_.back()) + " is in use and outbox.max_lanes is " +
                  std::to_string(most) + ": raise it and restart the server";
  std::erase_if(wanted_lanes_, [most](std::int32_t lane) { return lane >= most; });
}

// In a transaction with SPI, after the segments were looked at.
void Worker::share_lanes() {
  workers_seen_ = pg_atomic_read_u32(&database_->workers_changed);
  if (leaves_.empty()) return;
  Snapshot snapshot = pg::call([] { return RegisterSnapshot(GetLatestSnapshot()); });
  wanted_lanes_ = receipt::read_lanes_in_use(snapshot);
  leave_out_of_reach();
  layout_lanes_ = receipt::read_lanes(group_.layout, snapshot);
  pg::call([snapshot] { UnregisterSnapshot(snapshot); });

  const std::size_t share = fair_share();
  std::size_t kept = 0;
  for (const auto& lane : lanes_) {
    const bool wanted = std::ranges::binary_search(wanted_lanes_, lane->number());
    lane->leave(!wanted || kept == share);
    if (!lane->leaving()) kept++;
  }
  if (kept < share) claim_lanes(share - kept);
  if (lanes_.size() < share && some_lane_is_free()) next_look_ = std::min(next_look_, Clock::now() + claim_interval);
}

void Worker::claim_lanes(std::size_t most) {
  claiming_ = true;
  const std::vector<int32> claimed = claim::claim_lanes(wanted_lanes_, most);
  if (claimed.empty()) {
    claiming_ = false;
    return;
  }
  // A cursor of a lane that was just claimed: read after the claim, with a snapshot that shows what its last owner wrote.
  struct Read {
    Snapshot snapshot;
    segment::Rows rows;
  };
  const Read read = pg::call([] {
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    return Read{snapshot, segment::read_all(snapshot)};
  });
  for (const int32 number : claimed) {
    shared::use_lane(database_, number);
    lanes_.push_back(std::make_unique<Lane>(number, receipt::read_cursor(read.rows, group_, number, read.snapshot),
                                            shared::lane_at(database_, number),
                                            static_cast<std::uint32_t>(number_) + 1));
  }
  pg::call([&read] { UnregisterSnapshot(read.snapshot); });
  claiming_ = false;
}

void Worker::give_up_left_lanes() {
  std::vector<std::int32_t> left;
  for (const auto& lane : lanes_)
    if (lane->left()) left.push_back(lane->number());
  if (left.empty()) return;
  // First what we say of them in shared memory, where the next owner will say who it is.
  std::erase_if(lanes_, [](const auto& lane) { return lane->left(); });
  for (const std::int32_t lane : left) claim::release_lane(lane);
  shared::share_lanes_anew(database_);
}

// Another log, or another layout of the same one.
void Worker::begin_anew(bool same_log) {
  if (!same_log || !batches_.empty()) {
    drop_lanes();
    return;
  }
  let_go_of_lanes();
}

// The others must hear of it: they have looked in vain for what we still held.
void Worker::let_go_of_lanes() {
  const bool held = !lanes_.empty() || claiming_;
  lanes_.clear();  // first what we say of them in shared memory, where the next owner will say who it is
  claim::release_lanes();
  claiming_ = false;
  if (held) shared::share_lanes_anew(database_);
}

void Worker::drop_lanes() {
  // A publisher that still holds records of these batches must go before their memory does.
  if (publisher_) {
    publisher_->close(1s, outcomes_);
    publisher_.reset();
    configured_.reset();
  }
  outcomes_.clear();
  let_go_of_lanes();
  batches_.clear();
  submitting_ = 0;
}

}  // namespace outbox::worker
