// Claims lanes: a lane is published by one process at a time. C++ code, in a transaction.
//
// The claim is a lock of the session, so it ends with the process, whatever ends it, and outlives each transaction. The
// row of the lane is locked but never updated: no row version is left behind. The lock method is that of advisory locks,
// since an abort releases session locks of the default one; no application's advisory lock has this tag.
#pragma once

#include <vector>

#include "pg/postgres.hpp"

namespace outbox::claim {

// Of these lanes those that were free and are now this process's, at most `most`. Needs SPI.
std::vector<int32> claim_lanes(const std::vector<int32>& wanted, std::size_t most);
// Gives one back. Needs no transaction.
void release_lane(int32 lane);
// Gives back all lanes of this process. Needs no transaction: the extension may be gone.
void release_lanes();

}  // namespace outbox::claim
