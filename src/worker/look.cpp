// Gets what the catalogs say: is the extension there, may this database publish, which segments, lanes and Kafka settings
// are there. Hands on a Situation, and lets go of what does not hold any more.
#include "pg/lookup.hpp"
#include "segment/identity.hpp"
#include "settings.hpp"
#include "version.hpp"
#include "worker/kafka_server.hpp"
#include "worker/transaction.hpp"
#include "worker/worker.hpp"

namespace outbox::worker {

using namespace std::chrono_literals;
using shared::WorkerState;

namespace {

// Server code.
struct Look {
  bool extension = false;
  Oid extension_oid = InvalidOid;
  bool paused = false;
  char version[64] = "";
  const char* missing = nullptr;  // a part of it that somebody has dropped or renamed
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

const char* missing_part() {
  static const char* const parts[] = {"_identity", "_segment",    "_segment_event", "_layout",      "_lane",
                                      "_message",  "_message_id", "_progress",      "_dead_letter", "_pause"};
  for (const char* part : parts)
    if (!OidIsValid(pg::relation_oid(part))) return part;
  return nullptr;
}

Look look_at_catalogs() {
  Look found;
  const char* version = pg::extension_version();
  found.extension = version != nullptr;
  if (!found.extension) return found;
  strlcpy(found.version, version, sizeof found.version);
  found.extension_oid = pg::extension_oid();
  if ((found.missing = missing_part()) != nullptr) return found;
  found.paused = table_has_row("_pause");
  found.verdict = identity::check(&found.generation, found.why, sizeof found.why);
  if (found.verdict == identity::Verdict::promoted) identity::store_promoted(found.generation);
  return found;
}

Situation situation_of(const Look& found) {
  if (!found.extension) return {WorkerState::running, "", true};
  if (found.missing)
    return {WorkerState::incompatible,
            std::string("outbox.") + found.missing +
                " is missing: restore it, or give up what is in the outbox with SET outbox.allow_data_loss = on; "
                "DROP EXTENSION outbox CASCADE; and create it again"};
  if (strcmp(found.version, sql_version) != 0)
    return {WorkerState::incompatible, std::string("the library is version ") + library_version +
                                           " and needs SQL version " + sql_version + ", the database has " +
                                           found.version +
                                           ": ALTER EXTENSION outbox UPDATE, or install the matching library"};
  if (found.verdict == identity::Verdict::foreign)
    return {WorkerState::awaiting_adoption, std::string(found.why) + ": to publish from here, SELECT outbox.adopt()"};
  if (found.paused) return {WorkerState::paused, "outbox.pause() was called: SELECT outbox.resume()"};
  if (!settings::enabled) return {WorkerState::paused, "outbox.enabled is off"};
  return {WorkerState::running, ""};
}

}  // namespace

void Worker::look() {
  control_changed = false;
  next_look_ = Clock::now() + look_interval;
  known_owner = InvalidOid;
  KafkaServer server;
  Transaction transaction(true);
  watched_table = pg::call([] { return pg::relation_oid("_segment"); });
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
  rolled_segments_ = false;
  for (int i = 0; i < found.rows.count; i++) {
    const segment::Row& row = found.rows.rows[i];
    if (row.generation != group_.generation || row.state == segment::State::drained) continue;
    if (!layout) layout = row.layout;
    (row.layout == *layout ? leaves : waiting).push_back({row.segment, found.tables[i], 0});
    if (row.state == segment::State::rolled) rolled_segments_ = true;
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
    if (!segment::read_open(&open) && OidIsValid(pg::extension_oid())) segment::open_next();
  });
  transaction.commit();
  ConditionVariableBroadcast(&database_->moved);
  control_changed = true;
  SetLatch(MyLatch);
}

}  // namespace outbox::worker
