// Under which identity this database publishes. Stored xids mean something in one cluster only, so a restored dump, a
// copied data directory or a database made from a template must not go on by itself. Server code.
#pragma once

#include "pg/postgres.hpp"

namespace outbox::identity {

struct Identity {
  int64 system_identifier;
  Oid database;
  Oid extension;
  int32 timeline;
  char
      place[64];  // inode and birth time of global/pg_control: the same after a restart or a mount, different in a copy
};

Identity current();

enum class Verdict : uint8 {
  none_yet,  // nothing was ever enqueued
  ours,
  promoted,  // differs, but this server started as a standby: the normal fail-over
  foreign
};
// `why` gets a sentence when foreign. `generation` the newest generation.
Verdict check(int32* generation, char* why, size_t why_size);

// Whether new messages may go to a lane.
bool is_adopted();

// After a promotion: writes the identity of this server in place of the old primary's.
void store_promoted(int32 generation);

}  // namespace outbox::identity
