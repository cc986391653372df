#include "claim/window.hpp"

#include "enqueue/message.hpp"
#include "pg/error.hpp"
#include "pg/lookup.hpp"
#include "segment/segment.hpp"

namespace outbox::claim {

namespace {

enum IndexColumn : int { lane_column = 1, xid_column, id_column };

bool smaller_id(const Candidate& a, const Candidate& b) { return a.id < b.id; }

// Keeps the smallest; memory stays below twice `keep`.
class Smallest {
 public:
  Smallest(Walk& walk, std::int64_t above_id, std::size_t keep, std::int64_t limit)
      : walk_(walk), above_id_(above_id), keep_(keep), limit_(limit) {}

  void add(std::uint64_t xid, std::int64_t id, const ItemPointerData& tid, std::uint16_t leaf) {
    if (id <= above_id_) return;
    walk_.total++;
    if (id > limit_) return;
    walk_.smallest.push_back({xid, id, tid, leaf});
    if (walk_.smallest.size() >= 2 * keep_) cut();
  }

  [[nodiscard]] std::int64_t above() const { return above_id_; }
  [[nodiscard]] std::uint64_t total() const { return walk_.total; }
  // Whether ids from this one on are too large to be among the smallest.
  [[nodiscard]] bool too_large(std::int64_t id) const { return id > limit_; }
  void leave_out(std::uint64_t count) { walk_.total += count; }

  void finish() {
    if (walk_.smallest.size() > keep_) cut();
    std::sort(walk_.smallest.begin(), walk_.smallest.end(), smaller_id);
  }

 private:
  void cut() {
    auto& list = walk_.smallest;
    std::nth_element(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(keep_) - 1, list.end(), smaller_id);
    list.resize(keep_);
    limit_ = list.back().id;
  }

  Walk& walk_;
  std::int64_t above_id_;
  std::size_t keep_;
  std::int64_t limit_;
};

// One index of one segment. The methods are server code but for the vectors behind Smallest and Ranges, whose bad_alloc
// passes through no server frame.
struct IndexWalk {
  Relation table;
  Relation index;
  Snapshot snapshot;
  IndexScanDesc scan;
  int32 lane;
  std::uint16_t leaf;
  int32 segment;
  const TransactionSnapshot& upto;
  Smallest& sink;
  Ranges* record;

  std::uint64_t asked = 0;  // the xid that `aborted` is about
  bool aborted = false;

  // Rows of aborted transactions stay in the index until a vacuum. Where the commit log is truncated, they are gone.
  bool is_aborted(std::uint64_t xid) {
    if (xid == asked) return aborted;
    asked = xid;
    const TransactionId short_xid = XidFromFullTransactionId(FullTransactionIdFromU64(xid));
    LWLockAcquire(XactTruncationLock, LW_SHARED);
    aborted = xid >= pg::widen(pg::oldest_clog_xid()) && !TransactionIdDidCommit(short_xid);
    LWLockRelease(XactTruncationLock);
    return aborted;
  }

  void position(std::uint64_t low, std::uint64_t high) {
    ScanKeyData keys[3];
    ScanKeyInit(&keys[0], lane_column, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(lane));
    ScanKeyInit(&keys[1], xid_column, BTGreaterEqualStrategyNumber, F_XID8GE, UInt64GetDatum(low));
    ScanKeyInit(&keys[2], xid_column, BTLessStrategyNumber, F_XID8LT, UInt64GetDatum(high));
    index_rescan(scan, keys, 3, nullptr, 0);
  }

  void add(std::uint64_t xid, const ItemPointerData& tid, IndexScanDesc from) {
    bool null;
    const std::int64_t id = DatumGetInt64(index_getattr(from->xs_itup, id_column, from->xs_itupdesc, &null));
    if (record && id > sink.above()) record->add(segment, xid, id);
    sink.add(xid, id, tid, leaf);
  }

  // [low, high) without what is still running
  void range(std::uint64_t low, std::uint64_t high) {
    int since_check = 0;
    position(low, high);
    while (ItemPointer tid = index_getnext_tid(scan, ForwardScanDirection)) {
      bool null;
      const std::uint64_t xid = DatumGetUInt64(index_getattr(scan->xs_itup, xid_column, scan->xs_itupdesc, &null));
      if (upto.running(xid)) {
        if (xid + 1 >= high) return;
        position(xid + 1, high);
        continue;
      }
      if (!is_aborted(xid)) add(xid, *tid, scan);
      if (++since_check >= 10'000) {
        since_check = 0;
        CHECK_FOR_INTERRUPTS();
      }
    }
  }

  void part_of_transaction(const Range& part) {
    if (is_aborted(part.first_xid)) return;
    ScanKeyData keys[4];
    ScanKeyInit(&keys[0], lane_column, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(lane));
    ScanKeyInit(&keys[1], xid_column, BTEqualStrategyNumber, F_XID8EQ, UInt64GetDatum(part.first_xid));
    ScanKeyInit(&keys[2], id_column, BTGreaterStrategyNumber, F_INT8GT,
                Int64GetDatum(std::max(part.min_id - 1, sink.above())));
    ScanKeyInit(&keys[3], id_column, BTLessEqualStrategyNumber, F_INT8LE, Int64GetDatum(part.max_id));
    IndexScanDesc ids = pg::begin_index_scan(table, index, snapshot, 4);
    ids->xs_want_itup = true;
    index_rescan(ids, keys, 4, nullptr, 0);
    while (ItemPointer tid = index_getnext_tid(ids, ForwardScanDirection)) add(part.first_xid, *tid, ids);
    index_endscan(ids);
  }

  void everything(const TransactionSnapshot& from) {
    for (std::uint64_t xid : from.xip)
      if (upto.finished(xid)) {
        range(xid, xid + 1);
        if (record) record->cut();
      }
    if (from.xmax < upto.xmax) range(from.xmax, upto.xmax);
    if (record) record->cut();
  }

  void again(std::vector<Range>& ranges) {
    for (Range& known : ranges) {
      if (known.segment != segment || known.max_id <= sink.above()) continue;
      if (sink.too_large(known.min_id)) {
        sink.leave_out(known.count);
        continue;
      }
      const std::uint64_t before = sink.total();
      if (known.part)
        part_of_transaction(known);
      else
        range(known.first_xid, known.last_xid + 1);
      known.count = sink.total() - before;
      CHECK_FOR_INTERRUPTS();
    }
  }
};

void walk_leaf(Leaf& leaf, std::uint16_t number, Snapshot snapshot, int32 lane, const TransactionSnapshot& from,
               const TransactionSnapshot& upto, Smallest& sink, WindowRanges& ranges) {
  Relation table = pg::try_open(leaf.table, AccessShareLock);
  // Whoever has not heard yet that a segment is drained may find it archived or dropped.
  if (!table && segment::is_over(leaf.segment)) return;
  if (!table)
    ereport(
        ERROR,
        (errcode(ERRCODE_UNDEFINED_TABLE), errmsg("segment %d of the message log has lost its table", leaf.segment),
         errdetail("Its messages cannot be read, so nothing behind them is published."),
         errhint(
             "If they can be given up: SET outbox.allow_data_loss = on; DELETE FROM outbox._segment WHERE segment = %d",
             leaf.segment)));
  enqueue::require_shape(table);
  leaf.file = pg::rel_file(table);
  Oid index_oid = pg::index_on(table, BTREE_AM_OID, {enqueue::Column::lane, enqueue::Column::xid, enqueue::Column::id});
  if (!OidIsValid(index_oid) && segment::is_over(leaf.segment)) {
    table_close(table, AccessShareLock);
    return;
  }
  if (!OidIsValid(index_oid))
    ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT),
                    errmsg("table \"%s\" has lost its index on (lane, xid, id)", RelationGetRelationName(table)),
                    errhint("CREATE INDEX ON outbox.%s (lane, xid, id)", RelationGetRelationName(table))));
  Relation index = index_open(index_oid, AccessShareLock);
  const bool first = !ranges.known;
  IndexWalk walk{table,        index,
                 snapshot,     pg::begin_index_scan(table, index, snapshot, 3),
                 lane,         number,
                 leaf.segment, upto,
                 sink,         first ? &ranges.ranges : nullptr};
  walk.scan->xs_want_itup = true;
  if (first || leaf.segment > ranges.newest_segment)
    walk.everything(from);
  else
    walk.again(ranges.ranges.all());
  index_endscan(walk.scan);
  index_close(index, AccessShareLock);
  table_close(table, AccessShareLock);
}

}  // namespace

Walk walk_window(std::vector<Leaf>& leaves, Snapshot snapshot, int32 lane, const TransactionSnapshot& from,
                 const TransactionSnapshot& upto, std::int64_t above_id, WindowRanges& ranges, std::size_t keep) {
  Walk walk;
  if (!ranges.known) ranges.ranges = Ranges();  // an earlier walk may have failed halfway
  Smallest sink(walk, above_id, keep, ranges.known ? ranges.ranges.enough(above_id, keep) : INT64_MAX);
  for (std::size_t i = 0; i < leaves.size(); i++)
    pg::call([&] { walk_leaf(leaves[i], static_cast<std::uint16_t>(i), snapshot, lane, from, upto, sink, ranges); });
  sink.finish();
  if (!ranges.known && walk.total > walk.smallest.size()) {
    ranges.known = true;
    for (const Leaf& leaf : leaves) ranges.newest_segment = std::max(ranges.newest_segment, leaf.segment);
  } else if (!ranges.known) {
    ranges.ranges = Ranges();  // there will be no other
  }
  return walk;
}

}  // namespace outbox::claim
