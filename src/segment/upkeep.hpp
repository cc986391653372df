// Keeps the BRIN indexes up by which messages and receipts are found. C++ code, in a transaction.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <vector>

#include "pg/postgres.hpp"

namespace outbox::segment {

class Upkeep {
 public:
  // Summarises ranges of a table's BRIN index on these columns that are filled since the last time, for some milliseconds
  // at most. False: there is more to do. The range being filled is left out: once summarised, each insert would have to
  // update the summary.
  bool summarize(Oid table, std::initializer_list<AttrNumber> columns);
  // Tables that are not among these are not there any more.
  void keep_only(const std::vector<Oid>& tables);

 private:
  std::map<Oid, BlockNumber> summarized_;  // up to this block of each table
};

}  // namespace outbox::segment
