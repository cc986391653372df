#include "receipt/state.hpp"

#include <algorithm>

#include "claim/server_snapshot.hpp"
#include "pg/error.hpp"
#include "pg/lookup.hpp"
#include "pg/owned.hpp"
#include "receipt/receipts.hpp"

namespace outbox::receipt {

std::vector<std::int32_t> read_lanes(std::int32_t layout, Snapshot snapshot) {
  const segment::Lanes found = pg::call([=] { return segment::read_lanes(layout, snapshot); });
  return {found.lanes, found.lanes + found.count};
}

namespace {

std::vector<segment::Row> read_segments(Snapshot snapshot) {
  const segment::Rows rows = pg::call([snapshot] { return segment::read_all(snapshot); });
  return {rows.rows, rows.rows + rows.count};
}

}  // namespace

std::vector<std::int32_t> read_lanes_in_use(Snapshot snapshot) {
  std::vector<std::int32_t> lanes;
  std::int32_t previous = -1;
  for (const segment::Row& row : read_segments(snapshot)) {
    if (row.state == segment::State::drained || row.layout == previous) continue;
    previous = row.layout;
    const std::vector<std::int32_t> more = read_lanes(row.layout, snapshot);
    lanes.insert(lanes.end(), more.begin(), more.end());
  }
  std::ranges::sort(lanes);
  lanes.erase(std::unique(lanes.begin(), lanes.end()), lanes.end());
  return lanes;
}

Progress::Progress(Snapshot snapshot) : segments_(read_segments(snapshot)) {
  if (segments_.empty()) return;
  newest_generation_ = segments_.back().generation;
  const segment::Rows rows{segments_.data(), static_cast<int>(segments_.size())};
  std::optional<segment::Group> previous;
  for (const segment::Row& row : segments_) {
    if (row.group() == previous) continue;
    previous = row.group();
    for (std::int32_t lane : read_lanes(row.layout, snapshot)) {
      Cursor cursor = read_cursor(rows, row.group(), lane, snapshot);
      if (cursor.seq > 0) cursors_.push_back({row.group(), lane, std::move(cursor)});
    }
  }
}

segment::Group Progress::group_of(std::int32_t segment) const {
  for (const segment::Row& row : segments_)
    if (row.segment == segment) return row.group();
  return {newest_generation_, segments_.empty() ? 0 : segments_.back().layout};
}

const Cursor* Progress::cursor(std::int32_t segment, std::int32_t lane) const {
  const segment::Group group = group_of(segment);
  for (const LaneCursor& candidate : cursors_)
    if (candidate.group == group && candidate.lane == lane) return &candidate.cursor;
  return nullptr;
}

Progress::State Progress::state(std::int32_t segment, std::int32_t lane, std::uint64_t xid, std::int64_t id) const {
  const Cursor* of_lane = lane >= 0 ? cursor(segment, lane) : nullptr;
  if (of_lane && of_lane->covers(xid, id)) return State::published;
  return group_of(segment).generation == newest_generation_ ? State::pending : State::copied;
}

std::vector<std::int32_t> Progress::progress_segments(std::int32_t segment) const {
  const segment::Group group = group_of(segment);
  std::vector<std::int32_t> result;
  for (const segment::Row& row : segments_)
    if (row.segment >= segment && row.group() == group) result.push_back(row.segment);
  return result;
}

namespace {

// What one call site of a query keeps from row to row.
struct CallSite {
  explicit CallSite(Snapshot snapshot) : progress(snapshot) {}
  Progress progress;

  struct Decoded {
    std::int64_t first_id;
    std::int64_t last_id;
    std::int32_t lane;
    std::vector<Receipt> receipts;  // ascending by id; the topic is not kept
  };
  // Neighbouring messages share a progress row; late commits make a few rows overlap.
  std::vector<Decoded> decoded;
  std::size_t next_victim = 0;
};
constexpr std::size_t decoded_rows_kept = 8;

CallSite& call_site(FunctionCallInfo fcinfo) {
  if (!fcinfo->flinfo->fn_extra)
    fcinfo->flinfo->fn_extra = pg::owned_by(fcinfo->flinfo->fn_mcxt, std::make_unique<CallSite>(GetActiveSnapshot()));
  return *static_cast<CallSite*>(fcinfo->flinfo->fn_extra);
}

Datum message_state(PG_FUNCTION_ARGS) {
  CallSite& site = call_site(fcinfo);
  switch (site.progress.state(PG_GETARG_INT32(0), PG_GETARG_INT32(1), DatumGetUInt64(PG_GETARG_DATUM(2)),
                              PG_GETARG_INT64(3))) {
    case Progress::State::pending:
      return pg::call([] { return CStringGetTextDatum("pending"); });
    case Progress::State::published:
      return pg::call([] { return CStringGetTextDatum("published"); });
    case Progress::State::copied:
      break;
  }
  PG_RETURN_NULL();
}

const Receipt* find_in(const CallSite::Decoded& row, std::int64_t id) {
  auto it = std::lower_bound(row.receipts.begin(), row.receipts.end(), id,
                             [](const Receipt& receipt, std::int64_t wanted) { return receipt.id < wanted; });
  return it != row.receipts.end() && it->id == id ? &*it : nullptr;
}

const Receipt* find_decoded(const CallSite& site, std::int32_t lane, std::int64_t id) {
  for (const CallSite::Decoded& row : site.decoded)
    if (row.lane == lane && row.first_id <= id && id <= row.last_id)
      if (const Receipt* receipt = find_in(row, id)) return receipt;
  return nullptr;
}

struct Fetched {
  std::int64_t first_id;
  std::int64_t last_id;
  bytea* receipts;
};
constexpr int most_rows = 64;

// Server code. Reads as the extension's owner, since operators have no right on the progress log; so neither operators of
// the caller's search_path may be used, nor, without statistics, the planner's choice between the indexes and a full scan.
int fetch_rows(std::int32_t segment, std::int32_t lane, std::int64_t id, Fetched* rows) {
  if (!OidIsValid(pg::leaf_oid("_progress", segment))) return 0;
  Oid user;
  int security_context;
  GetUserIdAndSecContext(&user, &security_context);
  SetUserIdAndSecContext(pg::extension_owner(), security_context | SECURITY_LOCAL_USERID_CHANGE);
  const int guc_level = NewGUCNestLevel();
  for (const auto& [name, value] :
       {std::pair{"search_path", "pg_catalog, pg_temp"}, std::pair{"enable_seqscan", "off"}})
    (void)set_config_option(name, value, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
  char sql[256];
  pg_snprintf(sql, sizeof sql,
              "SELECT p.first_id, p.last_id, p.receipts FROM outbox._progress_%d p "
              "WHERE p.first_id <= $2 AND p.last_id >= $2 AND p.lane = $1 AND p.receipts IS NOT NULL",
              segment);
  Oid types[] = {INT4OID, INT8OID};
  Datum values[] = {Int32GetDatum(lane), Int64GetDatum(id)};
  if (SPI_execute_with_args(sql, 2, types, values, nullptr, true, most_rows) != SPI_OK_SELECT)
    elog(ERROR, "could not read receipts");
  AtEOXact_GUC(true, guc_level);
  SetUserIdAndSecContext(user, security_context);
  TupleDesc desc = SPI_tuptable->tupdesc;
  bool null;
  for (uint64 i = 0; i < SPI_processed; i++) {
    HeapTuple tuple = SPI_tuptable->vals[i];
    rows[i] = {DatumGetInt64(SPI_getbinval(tuple, desc, 1, &null)), DatumGetInt64(SPI_getbinval(tuple, desc, 2, &null)),
               DatumGetByteaP(SPI_getbinval(tuple, desc, 3, &null))};
  }
  return static_cast<int>(SPI_processed);
}

CallSite::Decoded decode(const Fetched& row, std::int32_t lane) {
  CallSite::Decoded result{row.first_id, row.last_id, lane, {}};
  Decoder decoder({VARDATA_ANY(row.receipts), VARSIZE_ANY_EXHDR(row.receipts)});
  while (std::optional<Receipt> receipt = decoder.next()) {
    receipt->topic = {};
    result.receipts.push_back(*receipt);
  }
  std::sort(result.receipts.begin(), result.receipts.end(),
            [](const Receipt& a, const Receipt& b) { return a.id < b.id; });
  return result;
}

const Receipt* keep(CallSite& site, CallSite::Decoded row, std::int64_t id) {
  if (site.decoded.size() < decoded_rows_kept) {
    site.decoded.push_back(std::move(row));
    return find_in(site.decoded.back(), id);
  }
  CallSite::Decoded& place = site.decoded[site.next_victim++ % decoded_rows_kept];
  place = std::move(row);
  return find_in(place, id);
}

std::optional<Receipt> find_receipt(FunctionCallInfo fcinfo) {
  CallSite& site = call_site(fcinfo);
  const std::int32_t segment = PG_GETARG_INT32(0);
  const std::int32_t lane = PG_GETARG_INT32(1);
  const std::int64_t id = PG_GETARG_INT64(3);
  if (lane < 0) return std::nullopt;
  const Cursor* cursor = site.progress.cursor(segment, lane);
  if (!cursor || !cursor->covers(DatumGetUInt64(PG_GETARG_DATUM(2)), id)) return std::nullopt;
  if (const Receipt* receipt = find_decoded(site, lane, id)) return *receipt;

  std::optional<Receipt> result;
  pg::call([] {
    if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
  });
  for (std::int32_t log : site.progress.progress_segments(segment)) {
    Fetched rows[most_rows];
    const int count = pg::call([&] { return fetch_rows(log, lane, id, rows); });
    for (int i = 0; i < count && !result; i++)
      if (const Receipt* receipt = keep(site, decode(rows[i], lane), id)) result = *receipt;
    if (result) break;
  }
  pg::call([] { SPI_finish(); });
  return result;
}

Datum kafka_partition(PG_FUNCTION_ARGS) {
  const std::optional<Receipt> receipt = find_receipt(fcinfo);
  if (!receipt || receipt->partition < 0) PG_RETURN_NULL();
  PG_RETURN_INT32(receipt->partition);
}

Datum kafka_offset(PG_FUNCTION_ARGS) {
  const std::optional<Receipt> receipt = find_receipt(fcinfo);
  if (!receipt || receipt->offset < 0) PG_RETURN_NULL();
  PG_RETURN_INT64(receipt->offset);
}

Datum cursors(PG_FUNCTION_ARGS) {
  pg::call([fcinfo] { pg::begin_result_set(fcinfo); });
  auto* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
  const Progress progress(GetActiveSnapshot());
  for (const Progress::LaneCursor& entry : progress.cursors()) {
    const bool in_window = entry.cursor.window_end.has_value();
    Datum values[] = {Int32GetDatum(entry.group.generation),
                      Int32GetDatum(entry.group.layout),
                      Int32GetDatum(entry.lane),
                      Int64GetDatum(entry.cursor.seq),
                      claim::to_datum(entry.cursor.completed),
                      in_window ? claim::to_datum(*entry.cursor.window_end) : 0,
                      Int64GetDatum(entry.cursor.sent_id)};
    bool nulls[] = {false, false, false, false, false, !in_window, !in_window};
    pg::call([&] { tuplestore_putvalues(result->setResult, result->setDesc, values, nulls); });
  }
  PG_RETURN_NULL();
}

}  // namespace
}  // namespace outbox::receipt

OUTBOX_FUNCTION(outbox_message_state, outbox::receipt::message_state);
OUTBOX_FUNCTION(outbox_kafka_partition, outbox::receipt::kafka_partition);
OUTBOX_FUNCTION(outbox_kafka_offset, outbox::receipt::kafka_offset);
OUTBOX_FUNCTION(outbox_cursors, outbox::receipt::cursors);
