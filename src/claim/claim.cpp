#include "claim/claim.hpp"

#include "pg/error.hpp"
#include "pg/lookup.hpp"
#include "settings.hpp"

namespace outbox::claim {

namespace {

Oid lane_table = InvalidOid;  // as of the newest claim: a lane is given back outside a transaction

LOCKTAG tag_of(int32 lane) {
  LOCKTAG tag;
  SET_LOCKTAG_OBJECT(tag, MyDatabaseId, lane_table, static_cast<Oid>(lane), 0);
  tag.locktag_lockmethodid = USER_LOCKMETHOD;
  return tag;
}

// Server code. `count` at first: of the wanted lanes.
void claim_into(int32* lanes, std::size_t* count, std::size_t most) {
  if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
  lane_table = pg::relation_oid("_lane");
  auto* wanted = static_cast<Datum*>(palloc(sizeof(Datum) * *count));
  for (std::size_t i = 0; i < *count; i++) wanted[i] = Int32GetDatum(lanes[i]);
  Oid type = INT4ARRAYOID;
  Datum list =
      PointerGetDatum(construct_array(wanted, static_cast<int>(*count), INT4OID, sizeof(int32), true, TYPALIGN_INT));
  *count = 0;
  if (SPI_execute_with_args(
          "SELECT l.lane FROM outbox._lane l WHERE l.lane = ANY ($1) ORDER BY l.lane FOR UPDATE SKIP LOCKED", 1, &type,
          &list, nullptr, false, 0) != SPI_OK_SELECT)
    elog(ERROR, "could not read the lanes");
  for (uint64 i = 0; i < SPI_processed && *count < most; i++) {
    bool null;
    const int32 lane = DatumGetInt32(SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &null));
    if (lane >= settings::max_lanes) continue;
    LOCKTAG tag = tag_of(lane);
    if (pg::is_locked_by_us(&tag, ExclusiveLock)) continue;
    if (LockAcquire(&tag, ExclusiveLock, true, true) == LOCKACQUIRE_NOT_AVAIL) continue;
    lanes[(*count)++] = lane;
  }
  SPI_finish();
}

}  // namespace

std::vector<int32> claim_lanes(const std::vector<int32>& wanted, std::size_t most) {
  std::vector<int32> lanes = wanted;
  std::size_t count = lanes.size();
  int32* const out = lanes.data();
  pg::call([&] { claim_into(out, &count, most); });
  lanes.resize(count);
  return lanes;
}

void release_lane(int32 lane) {
  pg::call([lane] {
    LOCKTAG tag = tag_of(lane);
    (void)LockRelease(&tag, ExclusiveLock, true);
  });
}

void release_lanes() {
  // The claims are the only locks of this method that the process has.
  pg::call([] { LockReleaseAll(USER_LOCKMETHOD, true); });
}

}  // namespace outbox::claim
