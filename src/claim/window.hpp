// The window of a lane: the messages that are visible in one snapshot and were not in an earlier one. C++ code.
//
//   window(F, T) = rows of the lane with ( xmax(F) <= xid < xmax(T)  or  xid in xip(F) )   -- not finished in F
//                  and xid finished in T,                                   in id order
//
// Nothing is skipped: a transaction that ends late is in xip(F) or at least xmax(F) until a snapshot sees it ended.
// Nothing waits: one that is still open is passed by. Per key the order is right for writers that hold a lock on their
// aggregate from before enqueue() until commit: the smaller id was then committed earlier, so no snapshot shows the later
// message without the earlier. Only real snapshots may bound a window; sorting or cutting by xid would break this.
//
// The index (lane, xid, id) of each segment is read with the index access method: the planner is not asked, and the heap
// is not touched. An xid that is still running in T is jumped over, and of xip(F) only what has ended since is probed.
// So a window yields candidates; whether a row is there and committed is seen when it is fetched, see fetch.hpp.
#pragma once

#include <cstdint>
#include <vector>

#include "claim/ranges.hpp"
#include "claim/snapshot.hpp"
#include "pg/postgres.hpp"

namespace outbox::claim {

// A segment's table as this worker knows it.
struct Leaf {
  int32 segment = 0;
  Oid table = InvalidOid;
  pg::RelFile file = 0;  // as of the walk; a rewrite (VACUUM FULL, CLUSTER) changes it, and all tids with it
};

struct Candidate {
  std::uint64_t xid;
  std::int64_t id;
  ItemPointerData tid;
  std::uint16_t leaf;  // index into the leaves
};
static_assert(sizeof(Candidate) == 24);

struct WindowRanges {
  Ranges ranges;
  bool known = false;
  int32 newest_segment = 0;  // a segment made after the first walk
};

struct Walk {
  std::vector<Candidate> smallest;  // the smallest ids above the given one, ascending, at most `keep`
  std::uint64_t total = 0;          // how many there are in all
};

// Of a window that is larger the rest is read when these are handed out; ranges keep that from being a walk over all of
// it. 24 bytes each, and twice as many while walking.
constexpr std::size_t keep_candidates = 200'000;

// In a transaction, with `snapshot` registered and at or past `upto`. Sets the leaves' `file`. A leaf
// that is gone is an error, unless its segment is drained: what cannot be read must not be stepped over.
// `ranges`: empty in the first walk over a window, which fills them when the window is larger than `keep`; given to each
// later walk, with the same `from` and `upto`.
Walk walk_window(std::vector<Leaf>& leaves, Snapshot snapshot, int32 lane, const TransactionSnapshot& from,
                 const TransactionSnapshot& upto, std::int64_t above_id, WindowRanges& ranges,
                 std::size_t keep = keep_candidates);

}  // namespace outbox::claim
