// Dead letters: messages that Kafka refused for good, kept with the reason until an operator resends them.
#pragma once

#include "pg/postgres.hpp"

namespace outbox::retry {

// Copies a message of the log to the dead letters, or updates its dead letter if it was one before. C++ code, inside SPI.
void bury(int32 segment, int32 lane, uint64 xid, int64 id, int error_code, const char* reason);

}  // namespace outbox::retry
