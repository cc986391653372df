// Which transactions were finished at a moment: what a SQL pg_snapshot is, as a plain value.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace outbox::claim {

// The first xid a server hands out (FirstNormalTransactionId).
constexpr std::uint64_t first_xid = 3;

// As made here: the empty snapshot, in which nothing is finished. A new cursor starts from it.
struct TransactionSnapshot {
  std::uint64_t xmin = first_xid;
  std::uint64_t xmax = first_xid;  // this and all later ones were not finished
  std::vector<std::uint64_t> xip;  // ascending; earlier than xmax and not finished

  [[nodiscard]] bool running(std::uint64_t xid) const {
    return xid >= xmax || (xid >= xmin && std::binary_search(xip.begin(), xip.end(), xid));
  }
  // Committed or aborted by then.
  [[nodiscard]] bool finished(std::uint64_t xid) const { return !running(xid); }
  // Every transaction that is finished in `other` is finished here.
  [[nodiscard]] bool at_or_past(const TransactionSnapshot& other) const {
    if (xmax < other.xmax) return false;
    return std::all_of(xip.begin(), xip.end(), [&](std::uint64_t xid) { return other.running(xid); });
  }
  bool operator==(const TransactionSnapshot&) const = default;
};

}  // namespace outbox::claim
