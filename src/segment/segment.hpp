// Segments of the message log, read from outbox._segment with the latest snapshot. Server code.
#pragma once

#include "pg/postgres.hpp"

namespace outbox::segment {

enum class State : uint8 { open, rolled, drained };

struct Row {
  int32 segment;
  int32 generation;
  int32 lanes;
  State state;
};

// All segments in ascending order, palloc'd in the current context.
struct Rows {
  Row* rows;
  int count;
};
Rows read_all(Snapshot snapshot);
// The one with the largest number: one step in an index.
bool read_newest(Snapshot snapshot, Row* newest);
bool read_open(Row* open);

// Opens the next segment in this transaction; lanes 0: as many as before.
void open_next(int32 lanes);

}  // namespace outbox::segment
