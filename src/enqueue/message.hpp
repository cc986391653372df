// A message on its way from the caller's arguments into the log. Server code: datums, no destructors.
#pragma once

#include "pg/postgres.hpp"

namespace outbox::enqueue {

// Attribute numbers of outbox._message.
enum Column : AttrNumber {
  id = 1,
  xid,
  enqueued_at,
  message_id,
  segment,
  lane,
  topic,
  key,
  payload,
  headers,
  columns = headers
};

// An error if a segment's table is not as a roll made it.
void require_shape(Relation leaf);
// The same if a column may not be null that enqueue may leave so: its owner's, or one of ours.
void require_room_for_nulls(Relation leaf);

struct Field {
  Datum value = 0;
  bool null = true;
};

struct Message {
  Datum topic = 0;  // text
  Field key;        // bytea
  Field payload;    // bytea
  Field headers;    // jsonb
};

// Refuses what cannot be published, and transactions that cannot write, with SQLSTATE, detail and hint.
void check(const Message& message);
void check_topic(const text* topic);
void check_transaction(const char* function);
[[noreturn]] void refuse_null_topic();
// Bytes of names and values.
int64 check_headers(Jsonb* headers);

// Where new messages go. Valid until the next relcache invalidation of outbox._segment.
struct OpenSegment {
  int32 segment = 0;
  const int32* lanes = nullptr;
  int32 lane_count = 0;
  Oid leaf = InvalidOid;
  Oid sequence = InvalidOid;
  bool adopted = false;  // false: lane -1, see segment/identity
};

// Opens the leaf for an insert; the lock is kept until the end of the transaction, the caller closes with NoLock.
Relation open_leaf(OpenSegment* chosen);

// The place of a message in a list of so many lanes.
int32 lane_of(const Message& message, int64 id, int32 lanes);

// Whether outbox.backlog_limit, which is set, lets one more message pass; refuses it, or warns.
enum class Refusal : bool { possible, never };
void check_backlog(Refusal refusal);

// Writes one message; returns its message_id. `kept`: of a message that is sent again.
struct Kept {
  const pg_uuid_t* message_id;
  TimestampTz enqueued_at;
  Refusal refusal = Refusal::possible;
};
pg_uuid_t* insert(const Message& message, const Kept* kept = nullptr, int64* new_id = nullptr,
                  int32* new_lane = nullptr);

// The counters and the wake-up at commit.
void count_at_commit(int32 lane, TimestampTz enqueued_at);  // lane -1: awaiting outbox.adopt()
// By this transaction, without what its savepoints have rolled back.
int64 enqueued_so_far();
void wake_at_commit();
// CREATE EXTENSION: at commit the database gets its place in shared memory.
void use_at_commit();
void define_commit_callbacks();

// Makes every session forget its OpenSegment once this transaction commits.
void forget_open_segment();
void define_open_segment_callback();

}  // namespace outbox::enqueue
