// Closes the open segment when it is old or large enough. Waits for nobody. Server code, in a transaction.
#pragma once

#include "pg/postgres.hpp"

namespace outbox::segment {

struct Size {
  bool known = false;  // false: somebody holds a lock that lets nobody look
  bool empty = true;
  int64 bytes = 0;  // with indexes and TOAST
};
Size measure(Oid table);

// Opens the next segment if `segment` is the open one. False: somebody holds a lock that this needs. Needs SPI.
bool roll(int32 segment);

}  // namespace outbox::segment
