// Segments of the message log and their layouts, read from outbox._segment, _segment_event and _layout. Server code.
#pragma once

#include "pg/postgres.hpp"

namespace outbox::segment {

enum class State : uint8 { open, rolled, drained };

// Segments that share their cursors: a lane's progress means something only among them.
struct Group {
  int32 generation;
  int32 layout;
  bool operator==(const Group&) const = default;
};

struct Row {
  int32 segment;
  int32 generation;
  int32 layout;
  State state;
  TransactionId made_by;  // of the roll; not normal when it is long ago
  [[nodiscard]] Group group() const { return {generation, layout}; }
};

// With ACCESS SHARE; nullptr if the table is not there. An error if its columns are not those that the extension made.
Relation open_segments();
Relation open_events();
Relation open_layouts();

// Segments that the log still has, in ascending order, palloc'd in the current context.
struct Rows {
  Row* rows;
  int count;
};
Rows read_all(Snapshot snapshot);
// The one with the largest number: one step in an index. Its state is not looked up.
bool read_newest(Snapshot snapshot, Row* newest);
bool read_open(Row* open);
// Everything in it is published, or it is not there any more. By what is committed now.
bool is_over(int32 segment);

// The lanes of the default Kafka server in a layout, palloc'd; what is hashed is the place in this list.
struct Lanes {
  int32* lanes;
  int count;
};
Lanes read_lanes(int32 layout, Snapshot snapshot);
// Of all its Kafka servers.
Lanes read_lanes_of_all(int32 layout, Snapshot snapshot);

// Opens the next segment in this transaction.
void open_next();

}  // namespace outbox::segment
