// A short transaction of a worker. C++ code.
#pragma once

#include "pg/error.hpp"

namespace outbox::worker {

// Begins at construction; commit() ends it. Left without commit(), by an exception, it does nothing: the loop's
// recovery aborts the transaction.
class Transaction {
 public:
  // `snapshot`: also pushes an active snapshot, which SQL needs.
  explicit Transaction(bool snapshot) : snapshot_(snapshot) {
    pg::call([snapshot] {
      SetCurrentStatementStartTimestamp();  // else xact_start and now() are the start of the process
      StartTransactionCommand();
      if (snapshot) PushActiveSnapshot(GetTransactionSnapshot());
    });
  }
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  void commit() const {
    const bool snapshot = snapshot_;
    pg::call([snapshot] {
      if (snapshot) PopActiveSnapshot();
      CommitTransactionCommand();
    });
  }

 private:
  bool snapshot_;
};

}  // namespace outbox::worker
