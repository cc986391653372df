// Where in the indexes the candidates of a big window stand, so that the next walk over it leaves out what is sent
// already and what is not due yet. Gets the candidates of the first walk in index order, (xid, id) within each segment;
// keeps one line for each some thousands of them. No server header.
//
// Ids and xids grow together but for transactions that last, so a range's ids are mostly a narrow interval.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace outbox::claim {

// Whole transactions, or a part of one by its ids.
struct Range {
  std::int32_t segment = 0;
  std::uint64_t first_xid = 0;
  std::uint64_t last_xid = 0;
  std::int64_t min_id = std::numeric_limits<std::int64_t>::max();
  std::int64_t max_id = std::numeric_limits<std::int64_t>::min();
  std::uint64_t count = 0;  // candidates as of the last walk over it
  bool part = false;        // of first_xid: the ids from min_id to max_id

  void add(std::int64_t id) {
    if (id < min_id) min_id = id;
    if (id > max_id) max_id = id;
    count++;
  }
  void add(const Range& other);
};

class Ranges {
 public:
  explicit Ranges(std::size_t size = 16'384) : size_(size) {}

  // In the order of the index.
  void add(std::int32_t segment, std::uint64_t xid, std::int64_t id) {
    if (open_ && xid == run_.first_xid && segment == run_.segment) {
      if (run_.count >= size_) cut_run();
    } else {
      begin_run(segment, xid);
    }
    run_.add(id);
  }
  // What follows does not continue what was added: there may be other transactions in between.
  void cut();

  [[nodiscard]] std::vector<Range>& all() { return ranges_; }
  // An id up to which there are at least `count` candidates above `above`; the largest there is if there are not.
  [[nodiscard]] std::int64_t enough(std::int64_t above, std::size_t count) const;

 private:
  void begin_run(std::int32_t segment, std::uint64_t xid);
  void cut_run();
  void flush_whole();

  std::size_t size_;
  std::vector<Range> ranges_;
  Range whole_;  // whole transactions
  Range run_;    // the one under way
  bool open_ = false;
};

}  // namespace outbox::claim
