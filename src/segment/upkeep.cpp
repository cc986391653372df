#include "segment/upkeep.hpp"

#include <algorithm>

#include "claim/server_snapshot.hpp"
#include "pg/error.hpp"
#include "pg/lookup.hpp"
#include "receipt/state.hpp"
#include "segment/segment.hpp"

namespace outbox::segment {

namespace {

// Server code.
bool has_writers(std::int32_t segment) {
  const Oid table = pg::leaf_oid("_message", segment);
  if (!OidIsValid(table)) return false;
  LOCKTAG tag;
  SET_LOCKTAG_RELATION(tag, MyDatabaseId, table);
  int count = 0;
  (void)GetLockConflicts(&tag, ShareLock, &count);
  return count > 0;
}

// Server code.
void mark(std::int32_t segment) {
  if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
  Oid type = INT4OID;
  Datum value = Int32GetDatum(segment);
  if (SPI_execute_with_args("INSERT INTO outbox._segment_event (segment, event, at) "
                            "VALUES ($1, 'drained', pg_catalog.clock_timestamp())",
                            1, &type, &value, nullptr, false, 0) != SPI_OK_INSERT)
    elog(ERROR, "could not mark segment %d drained", segment);
  SPI_finish();
}

bool all_past(const receipt::Progress& progress, std::int32_t segment, const std::vector<std::int32_t>& lanes,
              const claim::TransactionSnapshot& moment) {
  return std::all_of(lanes.begin(), lanes.end(), [&](std::int32_t lane) {
    const receipt::Cursor* cursor = progress.cursor(segment, lane);
    return cursor && cursor->completed.at_or_past(moment);
  });
}

// Server code. Nothing to do where somebody holds a conflicting lock, or the index is gone.
bool summarize_some(Oid table, std::initializer_list<AttrNumber> columns, BlockNumber* done) {
  constexpr int most_ms = 4;
  if (!OidIsValid(table) || !ConditionalLockRelationOid(table, ShareUpdateExclusiveLock)) return true;
  Relation relation = pg::try_open(table, NoLock);
  if (!relation) return true;
  const BlockNumber blocks = RelationGetNumberOfBlocks(relation);
  const Oid index_oid = pg::index_on(relation, BRIN_AM_OID, columns);
  relation_close(relation, NoLock);
  if (!OidIsValid(index_oid)) return true;
  Relation index = index_open(index_oid, AccessShareLock);
  const BlockNumber range = BrinGetPagesPerRange(index);
  index_close(index, AccessShareLock);
  if (blocks < *done) *done = 0;  // VACUUM FULL
  const TimestampTz began = GetCurrentTimestamp();
  for (; *done + range <= blocks; *done += range) {
    if (TimestampDifferenceExceeds(began, GetCurrentTimestamp(), most_ms)) return false;
    (void)DirectFunctionCall2(brin_summarize_range, ObjectIdGetDatum(index_oid), Int64GetDatum(*done));
  }
  return true;
}

}  // namespace

Drained Upkeep::mark_drained(std::int32_t generation) {
  Drained result;
  // A roll holds this lock until every session has been told; so with it held no roll is half done.
  const bool locked = pg::call([] {
    const Oid table = pg::relation_oid("_segment");
    return OidIsValid(table) && ConditionalLockRelationOid(table, ShareRowExclusiveLock);
  });
  if (!locked) return result;
  struct Read {
    Snapshot snapshot;
    Rows rows;
  };
  const auto read = pg::call([] {
    Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
    return Read{snapshot, read_all(snapshot)};
  });
  const receipt::Progress progress(read.snapshot);
  for (int i = 0; i < read.rows.count; i++) {
    const Row& row = read.rows.rows[i];
    if (row.state != State::rolled || row.generation != generation) continue;
    const std::int32_t number = row.segment;
    auto quiet = quiet_.find(number);
    if (quiet == quiet_.end()) {
      if (pg::call([number] { return has_writers(number); })) continue;
      Snapshot after = pg::call([] { return RegisterSnapshot(GetLatestSnapshot()); });
      quiet = quiet_.emplace(number, claim::from_server(after)).first;
      pg::call([after] { UnregisterSnapshot(after); });
    }
    if (!all_past(progress, number, receipt::read_lanes(row.layout, read.snapshot), quiet->second)) {
      result.behind = true;
      continue;
    }
    pg::call([number] { mark(number); });
    quiet_.erase(quiet);
    result.marked++;
  }
  pg::call([&read] { UnregisterSnapshot(read.snapshot); });
  return result;
}

bool Upkeep::summarize(Oid table, std::initializer_list<AttrNumber> columns) {
  BlockNumber* const done = &summarized_[table];
  return pg::call([table, columns, done] { return summarize_some(table, columns, done); });
}

}  // namespace outbox::segment
