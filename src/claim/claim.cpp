#include "claim/claim.hpp"

#include "pg/error.hpp"
#include "pg/lookup.hpp"
#include "settings.hpp"

namespace outbox::claim {

namespace {

LOCKTAG tag_of(int32 lane) {
  LOCKTAG tag;
  SET_LOCKTAG_OBJECT(tag, MyDatabaseId, pg::relation_oid("_lane"), static_cast<Oid>(lane), 0);
  tag.locktag_lockmethodid = USER_LOCKMETHOD;
  return tag;
}

// Server code.
void claim_into(int32* lanes, std::size_t* count, std::size_t most) {
  if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
  if (SPI_execute("SELECT l.lane FROM outbox._lane l ORDER BY l.lane FOR UPDATE SKIP LOCKED", false, 0) !=
      SPI_OK_SELECT)
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

std::vector<int32> claim_lanes(std::size_t most) {
  std::vector<int32> lanes(most);
  std::size_t count = 0;
  int32* const out = lanes.data();
  pg::call([&] { claim_into(out, &count, most); });
  lanes.resize(count);
  return lanes;
}

void release_lanes() {
  // The claims are the only locks of this method that the process has.
  pg::call([] { LockReleaseAll(USER_LOCKMETHOD, true); });
}

}  // namespace outbox::claim
