#include "claim/ranges.hpp"

#include <algorithm>

namespace outbox::claim {

void Range::add(const Range& other) {
  last_xid = other.last_xid;
  min_id = std::min(min_id, other.min_id);
  max_id = std::max(max_id, other.max_id);
  count += other.count;
}

void Ranges::begin_run(std::int32_t segment, std::uint64_t xid) {
  if (open_ && whole_.count > 0 && (whole_.segment != run_.segment || whole_.count + run_.count > size_)) flush_whole();
  if (open_ && run_.part) {
    ranges_.push_back(run_);
  } else if (open_) {
    if (whole_.count == 0) {
      whole_ = run_;
    } else {
      whole_.add(run_);
    }
  }
  if (whole_.count > 0 && whole_.segment != segment) flush_whole();
  run_ = Range{};
  run_.segment = segment;
  run_.first_xid = run_.last_xid = xid;
  open_ = true;
}

// The transaction is a big one: its ids are cut into parts.
void Ranges::cut_run() {
  if (whole_.count > 0) flush_whole();
  run_.part = true;
  ranges_.push_back(run_);
  Range next{};
  next.segment = run_.segment;
  next.first_xid = next.last_xid = run_.first_xid;
  next.part = true;
  run_ = next;
}

void Ranges::flush_whole() {
  ranges_.push_back(whole_);
  whole_ = Range{};
}

void Ranges::cut() {
  if (!open_) return;
  begin_run(run_.segment, 0);
  if (whole_.count > 0) flush_whole();
  open_ = false;
}

std::int64_t Ranges::enough(std::int64_t above, std::size_t count) const {
  std::vector<const Range*> due;
  for (const Range& range : ranges_)
    if (range.min_id > above) due.push_back(&range);
  std::ranges::sort(due, {}, &Range::max_id);
  std::uint64_t found = 0;
  for (const Range* range : due) {
    found += range->count;
    if (found >= count) return range->max_id;
  }
  return std::numeric_limits<std::int64_t>::max();
}

}  // namespace outbox::claim
