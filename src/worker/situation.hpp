// What the catalogs say about a database: is the extension there and complete, whose messages are these, may we work?
#pragma once

#include <string>

#include "pg/postgres.hpp"
#include "segment/identity.hpp"
#include "shared/shared.hpp"

namespace outbox::worker {

// Server code, in a transaction with an active snapshot.
struct Look {
  bool extension = false;
  Oid extension_oid = InvalidOid;
  bool paused = false;
  char version[64] = "";
  const char* missing = nullptr;  // a part of it that somebody has dropped or renamed
  identity::Verdict verdict = identity::Verdict::none_yet;
  int32 generation = 0;
  char why[256] = "";
};
Look look_at_catalogs();

// What a look at the catalogs found.
struct Situation {
  shared::WorkerState state = shared::WorkerState::not_running;
  std::string reason;
  bool extension_gone = false;
  [[nodiscard]] bool may_publish() const { return state == shared::WorkerState::running; }
};
Situation situation_of(const Look& found);

}  // namespace outbox::worker
