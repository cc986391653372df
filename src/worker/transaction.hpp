// A short transaction of a worker. C++ code.
#pragma once

#include "pg/error.hpp"
#include "pg/lookup.hpp"

namespace outbox::worker {

// Of the extension. Forgotten with every look at the catalogs, when a role changes, and when our tables do: REASSIGN OWNED
// changes those as well.
inline Oid known_owner = InvalidOid;

// Begins at construction; commit() ends it. Left without commit(), by an exception, it does nothing: the loop's
// recovery aborts the transaction.
class Transaction {
 public:
  // `sql`: with an active snapshot, and as the extension's owner under the restrictions of index functions: whatever
  // somebody may have hung onto our tables gets no more rights than their owner has.
  explicit Transaction(bool sql) : sql_(sql) {
    pg::call([this] {
      SetCurrentStatementStartTimestamp();  // else xact_start and now() are the start of the process
      StartTransactionCommand();
      if (!sql_) return;
      PushActiveSnapshot(GetTransactionSnapshot());
      GetUserIdAndSecContext(&user_, &security_context_);
      if (!OidIsValid(known_owner)) known_owner = pg::extension_owner();
      if (OidIsValid(known_owner))
        SetUserIdAndSecContext(known_owner,
                               security_context_ | SECURITY_LOCAL_USERID_CHANGE | SECURITY_RESTRICTED_OPERATION);
    });
  }
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  void commit() const {
    pg::call([this] {
      if (sql_) {
        SetUserIdAndSecContext(user_, security_context_);
        PopActiveSnapshot();
      }
      CommitTransactionCommand();
    });
  }

  // Nothing of it has happened.
  static void abort() {
    pg::call([] { AbortCurrentTransaction(); });
  }

 private:
  bool sql_;
  Oid user_ = InvalidOid;
  int security_context_ = 0;
};

}  // namespace outbox::worker
