// Gets what the catalogs say: is the extension there, may this database publish, which segments, lanes and Kafka settings
// are there. Hands on a Situation, and lets go of what does not hold any more.
#include "pg/lookup.hpp"
#include "segment/log.hpp"
#include "settings.hpp"
#include "worker/kafka_server.hpp"
#include "worker/transaction.hpp"
#include "worker/worker.hpp"

namespace outbox::worker {

using namespace std::chrono_literals;
using shared::WorkerState;

void Worker::look() {
  control_changed = false;
  next_look_ = Clock::now() + look_interval;
  known_owner = InvalidOid;
  KafkaServer server;
  Transaction transaction(true);
  watched_table = pg::call([] { return pg::relation_oid("_segment"); });
  watched_events = pg::call([] { return pg::relation_oid("_segment_event"); });
  const Look found = pg::call([] { return look_at_catalogs(); });
  situation_ = situation_of(found);
  // Adopted: outbox.adopt() has copied what waited for it into lanes, and its writers had all ended.
  if (found.extension && !found.missing && found.verdict != identity::Verdict::foreign)
    pg_atomic_write_u64(&database_->awaiting_adoption, 0);
  const bool holds = situation_.state == WorkerState::running || situation_.state == WorkerState::paused;
  const bool same_log = found.extension_oid == extension_ && found.generation == group_.generation;
  if (!same_log || (found.extension && holds && !look_at_segments(pg::call([] { return GetActiveSnapshot(); })))) {
    // Dropped and created again, or adopted: what we hold belongs to a log that is gone. Or another layout begins. Outside
    // the transaction, as the producer may take a second to end.
    transaction.commit();
    extension_ = found.extension_oid;
    group_.generation = found.generation;
    begin_anew(same_log);
    control_changed = found.extension;
    SetLatch(MyLatch);
    return;
  }
  if (found.extension && holds) {
    share_lanes();
    server = read_kafka_server(settings::server);
  }
  transaction.commit();
  if (found.extension && holds)
    configure(std::move(server));
  else
    drop_lanes();
  want_read_ = true;
}

// False: all segments of the layout that is being published are drained, and lanes are to begin anew on the next one.
bool Worker::look_at_segments(Snapshot snapshot) {
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
  std::optional<std::int32_t> layout;
  std::vector<claim::Leaf> leaves;
  std::vector<claim::Leaf> waiting;
  for (int i = 0; i < found.rows.count; i++) {
    const segment::Row& row = found.rows.rows[i];
    if (row.generation != group_.generation || row.state == segment::State::drained) continue;
    if (!layout) layout = row.layout;
    (row.layout == *layout ? leaves : waiting).push_back({row.segment, found.tables[i], 0});
  }
  if (layout && *layout != group_.layout && !lanes_.empty()) return false;
  newest_segment_ = found.rows.count > 0 ? found.rows.rows[found.rows.count - 1].segment : 0;
  leaves_ = std::move(leaves);
  waiting_ = std::move(waiting);
  if (layout) group_.layout = *layout;
  return true;
}

// Outside a transaction: an old producer may take a second to end.
void Worker::configure(KafkaServer server) {
  unconfigured_reason_ = server.reason;
  const auto same = [&](const publish::Settings& a, const publish::Settings& b) {
    return a.properties == b.properties && a.max_message_bytes == b.max_message_bytes;
  };
  if (server.settings && configured_ && publisher_ && same(*server.settings, *configured_) &&
      server.files == configured_files_)
    return;
  if (!server.settings && !publisher_) return;
  if (publisher_) {
    publisher_->close(1s, outcomes_);
    publisher_.reset();
    apply_outcomes();
  }
  configured_ = std::move(server.settings);
  configured_files_ = std::move(server.files);
  if (configured_) {
    publisher_ = std::make_unique<publish::Publisher>(*configured_);
    resubmit_all();
  }
}

void Worker::resubmit_all() {
  for (const auto& batch : batches_) batch->submitted = 0;
  submitting_ = 0;
}

void Worker::serve_segment_request() {
  if (pg_atomic_read_u32(&database_->segment_wanted) == 0) return;
  if (pg_atomic_exchange_u32(&database_->segment_wanted, 0) == 0) return;  // another worker does it
  Transaction transaction(true);
  pg::call([] {
    segment::Row open;
    // Whoever has the lock opens one just now.
    if (!OidIsValid(pg::extension_oid()) || !segment::lock_log()) return;
    if (!segment::read_open(&open)) segment::open_next();
  });
  transaction.commit();
  ConditionVariableBroadcast(&database_->moved);
  control_changed = true;
  SetLatch(MyLatch);
}

}  // namespace outbox::worker
