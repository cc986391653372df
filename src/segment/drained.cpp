#include "segment/drained.hpp"

#include <algorithm>

#include "claim/server_snapshot.hpp"
#include "pg/error.hpp"
#include "pg/lookup.hpp"

namespace outbox::segment {

bool has_writers(Oid table) {
  if (!OidIsValid(table)) return false;
  LOCKTAG tag;
  SET_LOCKTAG_RELATION(tag, MyDatabaseId, table);
  int count = 0;
  VirtualTransactionId* holders = GetLockConflicts(&tag, ShareLock, &count);
  // Outside a transaction it is allocated in a context that nobody resets.
  pfree(holders);
  return count > 0;
}

void note_quiet(const Entry& entry) {
  Snapshot after = pg::call([] { return RegisterSnapshot(GetLatestSnapshot()); });
  const Datum moment = claim::to_datum(claim::from_server(after));
  pg::call([&] {
    UnregisterSnapshot(after);
    add_event(entry.row.segment, "quiet", moment, nullptr);
  });
}

std::vector<LaneCursor> cursors_of(const Entry& entry, const Log& log, Snapshot snapshot) {
  std::vector<Row> rows;
  rows.reserve(static_cast<std::size_t>(log.count));
  for (int i = 0; i < log.count; i++) rows.push_back(log.entries[i].row);
  const Rows all{rows.data(), static_cast<int>(rows.size())};
  const Lanes lanes = pg::call([&] { return read_lanes_of_all(entry.row.layout, snapshot); });
  std::vector<LaneCursor> cursors;
  cursors.reserve(static_cast<std::size_t>(lanes.count));
  for (int i = 0; i < lanes.count; i++)
    cursors.push_back({lanes.lanes[i], receipt::read_cursor(all, entry.row.group(), lanes.lanes[i], snapshot)});
  return cursors;
}

bool is_published(const Entry& entry, const Log& log, Snapshot snapshot) {
  if (entry.moment == 0) return false;
  const claim::TransactionSnapshot moment = claim::from_datum(entry.moment);
  return std::ranges::all_of(cursors_of(entry, log, snapshot),
                             [&moment](const LaneCursor& its) { return its.cursor.completed.at_or_past(moment); });
}

}  // namespace outbox::segment
