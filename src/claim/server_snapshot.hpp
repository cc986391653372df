// TransactionSnapshot from and to the server's own forms. C++ code.
#pragma once

#include "claim/snapshot.hpp"
#include "pg/postgres.hpp"

namespace outbox::claim {

// From a registered MVCC snapshot; its 32-bit xids are widened to xid8.
TransactionSnapshot from_server(Snapshot snapshot);
// A datum of type pg_snapshot, palloc'd in the current context.
Datum to_datum(const TransactionSnapshot& snapshot);
TransactionSnapshot from_datum(Datum value);

}  // namespace outbox::claim
