// What a segment needs after it was rolled: to be seen drained; and its BRIN index kept up. C++ code, in a transaction.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>

#include "claim/snapshot.hpp"
#include "pg/postgres.hpp"

namespace outbox::segment {

struct Drained {
  int marked = 0;
  bool behind = false;  // a segment has no writers any more, but a lane's progress does not say it is past that moment
};

class Upkeep {
 public:
  // A rolled segment is drained when everything in it is published. Judged in this order:
  //  1. nobody holds a lock to write to it, prepared transactions included; nobody can get one, since the roll is over;
  //  2. a snapshot S taken after that: every writer of the segment is finished in S;
  //  3. the stored cursor of every lane is at or past S.
  Drained mark_drained(std::int32_t generation);

  // Summarises ranges of a table's BRIN index on these columns that are filled since the last time, for some milliseconds
  // at most. False: there is more to do. The range being filled is left out: once summarised, each insert would have to
  // update the summary.
  bool summarize(Oid table, std::initializer_list<AttrNumber> columns);

 private:
  std::map<Oid, BlockNumber> summarized_;                     // up to this block of each table
  std::map<std::int32_t, claim::TransactionSnapshot> quiet_;  // S of each segment that reached step 2
};

}  // namespace outbox::segment
