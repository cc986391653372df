#include "worker/worker.hpp"

#include <algorithm>

#include "claim/claim.hpp"
#include "claim/server_snapshot.hpp"
#include "enqueue/message.hpp"
#include "pg/lookup.hpp"
#include "segment/identity.hpp"
#include "segment/upkeep.hpp"
#include "settings.hpp"
#include "version.hpp"
#include "worker/flush.hpp"
#include "worker/kafka_server.hpp"
#include "worker/transaction.hpp"

namespace outbox::worker {

using namespace std::chrono_literals;
using shared::WorkerState;

bool control_changed = true;
Oid watched_table = InvalidOid;

namespace {

// Read and not yet in the progress log, over all lanes. What Kafka's queue takes is bounded by librdkafka's settings.
constexpr std::size_t most_records = 100'000;
constexpr std::size_t most_bytes = std::size_t{64} * 1024 * 1024;
// A crash repeats at most the messages acknowledged in this time.
constexpr auto append_interval = 20ms;
constexpr auto look_interval = 30s;
constexpr auto upkeep_interval = 5s;

long ms_until(Clock::time_point when) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(when - Clock::now()).count();
  return std::max<long>(left, 0);
}

}  // namespace

Worker::Worker(shared::Database* database, shared::Worker* self) : database_(database), self_(self) {}
Worker::~Worker() = default;

int Worker::wake_fd() const { return publisher_ ? publisher_->wake_fd() : -1; }

bool Worker::room_for_more() const {
  std::size_t records = 0;
  std::size_t bytes = 0;
  for (const auto& batch : batches_) {
    records += batch->records.size();
    bytes += batch->arena.bytes();
  }
  return records < most_records && bytes < most_bytes;
}

// While paused the log is read for the count of what is pending, not for messages.
bool Worker::may_read() const {
  return situation_.state == WorkerState::paused || (situation_.may_publish() && room_for_more());
}

bool Worker::idle() const {
  return batches_.empty() && std::all_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->idle(); });
}

long Worker::sleep_ms() const {
  const auto now = Clock::now();
  if (retry_at_ <= now && want_read_ && may_read()) return 0;
  Clock::time_point wake = std::min(next_look_, now + look_interval);
  if (publisher_)
    if (const auto poll = publisher_->next_poll()) wake = std::min(wake, *poll);
  for (const auto& lane : lanes_)
    if (lane->has_progress()) wake = std::min(wake, lane->last_append + append_interval);
  if ((rolled_segments_ || active_) && situation_.may_publish()) wake = std::min(wake, next_upkeep_);
  return ms_until(std::max(wake, std::min(retry_at_, now + look_interval)));
}

bool Worker::turn(bool woken) {
  if (woken) want_read_ = true;
  if (retry_at_ <= Clock::now()) {
    if (control_changed || next_look_ <= Clock::now()) look();
    if (control_changed && !situation_.extension_gone) look();  // what we held is forgotten, now look at what is there
    if (situation_.extension_gone) return false;
    serve_segment_request();
    if (want_read_ && may_read()) read();
  }
  submit();
  take_reports();
  if (retry_at_ <= Clock::now()) {
    append_progress(false);
    if (situation_.may_publish() && next_upkeep_ <= Clock::now()) look_after_segments();
    failures_ = 0;
  }
  write_log();
  show_state();
  return true;
}

void Worker::back_off(const char* why) {
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

// ---- what there is to do

namespace {

// Server code.
struct Look {
  bool extension = false;
  Oid extension_oid = InvalidOid;
  bool paused = false;
  bool any_segment = false;
  char version[64] = "";
  identity::Verdict verdict = identity::Verdict::none_yet;
  int32 generation = 0;
  char why[256] = "";
};

bool table_has_row(const char* name) {
  Oid oid = pg::relation_oid(name);
  Relation relation = OidIsValid(oid) ? pg::try_open(oid, AccessShareLock) : nullptr;
  if (!relation) return false;
  SysScanDesc scan = systable_beginscan(relation, InvalidOid, false, GetActiveSnapshot(), 0, nullptr);
  const bool found = HeapTupleIsValid(systable_getnext(scan));
  systable_endscan(scan);
  table_close(relation, AccessShareLock);
  return found;
}

Look look_at_catalogs() {
  Look found;
  const char* version = pg::extension_version();
  found.extension = version != nullptr;
  if (!found.extension) return found;
  strlcpy(found.version, version, sizeof found.version);
  found.extension_oid = pg::extension_oid();
  found.paused = table_has_row("_pause");
  found.verdict = identity::check(&found.generation, found.why, sizeof found.why);
  if (found.verdict == identity::Verdict::promoted) identity::store_promoted(found.generation);
  return found;
}

}  // namespace

void Worker::look() {
  control_changed = false;
  next_look_ = Clock::now() + look_interval;
  KafkaServer server;
  Transaction transaction(true);
  watched_table = pg::call([] { return pg::relation_oid("_segment"); });
  const Look found = pg::call([] { return look_at_catalogs(); });
  situation_ = Situation{WorkerState::running, "", !found.extension};
  if (found.extension_oid != extension_ || found.generation != generation_) {
    // Dropped and created again, or adopted: what we hold belongs to a log that is gone. Outside the transaction, as
    // the producer may take a second to end.
    transaction.commit();
    extension_ = found.extension_oid;
    generation_ = found.generation;
    drop_lanes();
    control_changed = found.extension;
    SetLatch(MyLatch);
    return;
  }
  if (found.extension && strcmp(found.version, sql_version) != 0) {
    situation_.state = WorkerState::incompatible;
    situation_.reason = std::string("the library is version ") + library_version + " and needs SQL version " +
                        sql_version + ", the database has " + found.version +
                        ": ALTER EXTENSION outbox UPDATE, or install the matching library";
  } else if (found.verdict == identity::Verdict::foreign) {
    situation_.state = WorkerState::awaiting_adoption;
    situation_.reason = std::string(found.why) + ": to publish from here, SELECT outbox.adopt()";
  } else if (found.paused || !settings::enabled) {
    situation_.state = WorkerState::paused;
    situation_.reason = found.paused ? "outbox.pause() was called: SELECT outbox.resume()" : "outbox.enabled is off";
  }
  const bool holds = situation_.state == WorkerState::running || situation_.state == WorkerState::paused;
  if (found.extension && holds) {
    look_at_segments(pg::call([] { return GetActiveSnapshot(); }));
    claim_lanes();
    server = read_kafka_server(settings::server);
  }
  transaction.commit();
  if (found.extension && holds)
    configure(std::move(server));
  else
    stop_publishing();
  want_read_ = true;
}

void Worker::look_at_segments(Snapshot snapshot) {
  struct Found {
    segment::Rows rows;
    Oid* tables;
  };
  const Found found = pg::call([snapshot] {
    Found result{segment::read_all(snapshot), nullptr};
    result.tables = static_cast<Oid*>(palloc(sizeof(Oid) * (result.rows.count + 1)));
    for (int i = 0; i < result.rows.count; i++)
      result.tables[i] = pg::leaf_oid("_message", result.rows.rows[i].segment);
    return result;
  });
  newest_segment_ = found.rows.count > 0 ? found.rows.rows[found.rows.count - 1].segment : 0;
  leaves_.clear();
  rolled_segments_ = false;
  for (int i = 0; i < found.rows.count; i++) {
    const segment::Row& row = found.rows.rows[i];
    if (row.generation != generation_ || row.state == segment::State::drained) continue;
    leaves_.push_back({row.segment, found.tables[i], 0});
    if (row.state == segment::State::rolled) rolled_segments_ = true;
  }
}

void Worker::claim_lanes() {
  if (leaves_.empty()) return;
  const std::vector<int32> claimed = claim::claim_lanes(static_cast<std::size_t>(shared::get()->lanes_each));
  if (claimed.empty()) return;
  // A cursor of a lane that was just claimed: read after the claim, with a snapshot that shows what its last owner wrote.
  struct Read {
    Snapshot snapshot;
    segment::Rows rows;
  };
  const Read read = pg::call([] {
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    return Read{snapshot, segment::read_all(snapshot)};
  });
  for (const int32 number : claimed)
    lanes_.push_back(std::make_unique<Lane>(number, receipt::read_cursor(read.rows, generation_, number, read.snapshot),
                                            shared::lane_at(database_, number)));
  pg::call([&read] { UnregisterSnapshot(read.snapshot); });
}

// Outside a transaction: an old producer may take a second to end.
void Worker::configure(KafkaServer server) {
  unconfigured_reason_ = server.reason;
  const auto same = [&](const publish::Settings& a, const publish::Settings& b) {
    return a.properties == b.properties && a.max_message_bytes == b.max_message_bytes;
  };
  if (server.settings && configured_ && publisher_ && same(*server.settings, *configured_)) return;
  if (!server.settings && !publisher_) return;
  if (publisher_) {
    publisher_->close(1s, outcomes_);
    publisher_.reset();
    apply_outcomes();
  }
  configured_ = std::move(server.settings);
  if (configured_) {
    publisher_ = std::make_unique<publish::Publisher>(*configured_);
    resubmit_all();
  }
}

void Worker::resubmit_all() {
  for (const auto& batch : batches_) batch->submitted = 0;
  submitting_ = 0;
}

void Worker::stop_publishing() {
  if (publisher_) {
    publisher_->close(1s, outcomes_);
    publisher_.reset();
  }
  configured_.reset();
  drop_lanes();
}

void Worker::drop_lanes() {
  claim::release_lanes();
  // A publisher that still holds records of these batches must go before their memory does.
  if (publisher_) {
    publisher_->close(1s, outcomes_);
    publisher_.reset();
    configured_.reset();
  }
  outcomes_.clear();
  lanes_.clear();
  batches_.clear();
  submitting_ = 0;
}

void Worker::serve_segment_request() {
  if (pg_atomic_read_u32(&database_->segment_wanted) == 0) return;
  pg_atomic_write_u32(&database_->segment_wanted, 0);
  Transaction transaction(true);
  pg::call([] {
    segment::Row open;
    if (!segment::read_open(&open) && OidIsValid(pg::extension_oid())) segment::open_next(0);
  });
  transaction.commit();
  ConditionVariableBroadcast(&database_->moved);
  control_changed = true;
  SetLatch(MyLatch);
}

// ---- from the log to Kafka

void Worker::read() {
  want_read_ = false;
  if (lanes_.empty() && leaves_.empty()) {
    // Nothing was ever enqueued: what outbox.drain() waits for is done.
    const std::uint64_t sync = pg_atomic_read_u64(&database_->requested_sync);
    if (pg_atomic_exchange_u64(&database_->completed_sync, sync) != sync) ConditionVariableBroadcast(&database_->moved);
    return;
  }
  read_lanes();
}

void Worker::read_lanes() {
  if (!situation_.may_publish() &&
      std::all_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->has_unread(); }))
    return;
  // Order matters, see shared::Lane: these numbers are read before the snapshot is taken.
  const std::uint64_t sync = pg_atomic_read_u64(&database_->requested_sync);
  std::vector<std::uint64_t> finished;
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

  Transaction transaction(false);
  Snapshot snapshot = pg::call([] {
    AcceptInvalidationMessages();
    return RegisterSnapshot(GetLatestSnapshot());
  });
  if (!know_all_segments(snapshot)) {
    transaction.commit();
    control_changed = true;
    SetLatch(MyLatch);
    return;
  }
  const claim::TransactionSnapshot now = claim::from_server(snapshot);
  const bool count_only = !situation_.may_publish();
  const claim::Budget budget = count_only ? claim::Budget{0, 0} : claim::Budget{};
  std::vector<std::unique_ptr<claim::Batch>> read;
  for (std::size_t i = 0; i < lanes_.size(); i++) {
    starved_ |= !lanes_[i]->has_unread() && !lanes_[i]->can_open_window();
    // A lane that goes on in an older window does not look at what is committed since: it must be asked again.
    const bool older = lanes_[i]->has_unread() || lanes_[i]->will_resume();
    auto batch = lanes_[i]->read({snapshot, now, finished[i], sync, leaves_}, budget);
    want_read_ |= (older || lanes_[i]->has_unread()) && !count_only;
    if (batch) read.push_back(std::move(batch));
  }
  pg::call([snapshot] { UnregisterSnapshot(snapshot); });
  transaction.commit();

  for (auto& batch : read) {
    flush_commits_of(*batch);
    batch->first_ticket = next_ticket_;
    for (publish::Record& record : batch->records) record.ticket = next_ticket_++;
    lane(batch->lane)->expect(batch.get());
    batches_.push_back(std::move(batch));
    active_ = true;
  }
  if (read.empty()) ConditionVariableBroadcast(&database_->moved);
}

// A roll is visible to the snapshot before its invalidation reaches us. A segment that we do not know would be stepped
// over, and its messages with it; so the segments are those that the window's own snapshot shows. False: adopted meanwhile.
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
  if (found.any && found.newest.generation != generation_) return false;
  if (found.any && found.newest.segment != newest_segment_) look_at_segments(snapshot);
  return true;
}

void Worker::submit() {
  if (!publisher_ || !situation_.may_publish()) return;
  while (submitting_ < batches_.size()) {
    claim::Batch& batch = *batches_[submitting_];
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
    lane(batch->lane)->take(*batch, outcome);
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
    batches_.pop_front();
    if (submitting_ > 0) submitting_--;
  }
}

void Worker::append_progress(bool all) {
  const auto now = Clock::now();
  for (std::size_t i = 0; i < lanes_.size(); i++)
    if (lanes_[i]->has_progress() && (all || now - lanes_[i]->last_append >= append_interval)) append_lane(*lanes_[i]);
}

void Worker::append_lane(Lane& lane) {
  receipt::Advance advance = lane.progress();
  Transaction transaction(true);
  const bool appended = receipt::append(advance, generation_);
  transaction.commit();
  if (!appended) {
    pg::call([&lane] {
      ereport(LOG, (errmsg("outbox: lane %d was published by another process, claiming it again", lane.number())));
    });
    drop_lanes();
    control_changed = true;
    return;
  }
  lane.last_append = Clock::now();
  lane.progress_appended(advance.to.seq);
  ConditionVariableBroadcast(&database_->moved);
}

Lane* Worker::lane(std::int32_t number) {
  for (const auto& lane : lanes_)
    if (lane->number() == number) return lane.get();
  return nullptr;
}

void Worker::finish() {
  if (publisher_) {
    publisher_->close(500ms, outcomes_);
    publisher_.reset();
    apply_outcomes();
  }
  append_progress(true);
}

// ---- what looks after the log

void Worker::look_after_segments() {
  next_upkeep_ = Clock::now() + upkeep_interval;
  if (active_) {
    active_ = false;
    for (const claim::Leaf& leaf : leaves_) {
      Transaction transaction(true);
      pg::call([&leaf] { segment::summarize(leaf.table); });
      transaction.commit();
    }
  }
  if (!rolled_segments_ || lanes_.empty()) return;
  Transaction transaction(true);
  const segment::Drained result = upkeep_.mark_drained(generation_);
  transaction.commit();
  if (result.marked > 0) control_changed = true;
  if (!result.behind) return;
  // Nobody writes to the segment any more, but the progress log does not say yet that the lanes are past that moment.
  for (const auto& lane : lanes_) lane->note_completed();
  want_read_ = true;
}

// ---- what operators see

void Worker::show_failure(const char* text, std::int32_t only_lane) {
  LWLockAcquire(shared::get()->lock, LW_EXCLUSIVE);
  for (const auto& lane : lanes_) {
    if (only_lane >= 0 && lane->number() != only_lane) continue;
    shared::Lane* counters = shared::lane_at(database_, lane->number());
    if (strcmp(counters->last_error, text) != 0) counters->last_error_since = GetCurrentTimestamp();
    strlcpy(counters->last_error, text, sizeof counters->last_error);
  }
  LWLockRelease(shared::get()->lock);
}

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
    } else {
      state = idle() ? WorkerState::idle : WorkerState::running;
    }
  }
  if (shown_state_ == state && shown_reason_ == reason) return;
  const bool was_bad = shown_state_ == WorkerState::backing_off || shown_state_ == WorkerState::unconfigured;
  const bool is_bad = state == WorkerState::backing_off || state == WorkerState::unconfigured;
  if (is_bad && (!was_bad || shown_state_ != state)) {
    show_failure(reason.c_str());
    const char* text = reason.c_str();
    const char* name = shared::state_name(state);
    pg::call([=] { ereport(LOG, (errmsg("outbox worker is %s: %s", name, text))); });
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
