#include "claim/server_snapshot.hpp"

#include "pg/error.hpp"

namespace outbox::claim {

namespace {

// Layout of the type pg_snapshot (src/backend/utils/adt/xid8funcs.c); its text form pins it down: the members are
// binary-compatible from PostgreSQL 13 on.
struct StoredSnapshot {
  int32 length;
  uint32 nxip;
  FullTransactionId xmin;
  FullTransactionId xmax;
  FullTransactionId xip[FLEXIBLE_ARRAY_MEMBER];
};

}  // namespace

TransactionSnapshot from_server(Snapshot snapshot) {
  TransactionSnapshot result;
  result.xmin = pg::widen(snapshot->xmin);
  result.xmax = pg::widen(snapshot->xmax);
  result.xip.reserve(snapshot->xcnt);
  for (uint32 i = 0; i < snapshot->xcnt; i++) result.xip.push_back(pg::widen(snapshot->xip[i]));
  std::sort(result.xip.begin(), result.xip.end());
  return result;
}

Datum to_datum(const TransactionSnapshot& snapshot) {
  const Size size = offsetof(StoredSnapshot, xip) + sizeof(FullTransactionId) * snapshot.xip.size();
  auto* stored = static_cast<StoredSnapshot*>(pg::call([size] { return palloc0(size); }));
  SET_VARSIZE(stored, size);
  stored->nxip = static_cast<uint32>(snapshot.xip.size());
  stored->xmin = FullTransactionIdFromU64(snapshot.xmin);
  stored->xmax = FullTransactionIdFromU64(snapshot.xmax);
  for (size_t i = 0; i < snapshot.xip.size(); i++) stored->xip[i] = FullTransactionIdFromU64(snapshot.xip[i]);
  return PointerGetDatum(stored);
}

TransactionSnapshot from_datum(Datum value) {
  auto* stored = pg::call([value] { return reinterpret_cast<StoredSnapshot*>(PG_DETOAST_DATUM_COPY(value)); });
  TransactionSnapshot result;
  result.xmin = U64FromFullTransactionId(stored->xmin);
  result.xmax = U64FromFullTransactionId(stored->xmax);
  result.xip.reserve(stored->nxip);
  for (uint32 i = 0; i < stored->nxip; i++) result.xip.push_back(U64FromFullTransactionId(stored->xip[i]));
  return result;
}

}  // namespace outbox::claim
