#include "segment/upkeep.hpp"

#include <algorithm>

#include "pg/error.hpp"
#include "pg/lookup.hpp"

namespace outbox::segment {

namespace {

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

bool Upkeep::summarize(Oid table, std::initializer_list<AttrNumber> columns) {
  BlockNumber* const done = &summarized_[table];
  return pg::call([table, columns, done] { return summarize_some(table, columns, done); });
}

void Upkeep::keep_only(const std::vector<Oid>& tables) {
  std::erase_if(summarized_, [&](const auto& entry) { return std::ranges::find(tables, entry.first) == tables.end(); });
}

}  // namespace outbox::segment
