#include "worker/flush.hpp"

#include "pg/error.hpp"

namespace outbox::worker {

namespace {

// Server code. The commit log knows the LSN of asynchronous commits and sets it before the commit can be seen; a
// synchronous commit was flushed before. An xid whose commit log is truncated was flushed with the truncation's record.
XLogRecPtr commit_of(std::uint64_t xid) {
  LWLockAcquire(XactTruncationLock, LW_SHARED);
  const bool kept = xid >= pg::widen(pg::oldest_clog_xid());
  const XLogRecPtr commit = kept ? TransactionIdGetCommitLSN(static_cast<TransactionId>(xid)) : InvalidXLogRecPtr;
  LWLockRelease(XactTruncationLock);
  return commit;
}

}  // namespace

void flush_commits_of(const claim::Batch& batch) {
  pg::call([&batch] {
    XLogRecPtr last = InvalidXLogRecPtr;
    std::uint64_t previous = 0;
    for (const claim::Origin& origin : batch.origins) {
      if (origin.xid == previous) continue;
      previous = origin.xid;
      const XLogRecPtr commit = commit_of(origin.xid);
      if (commit > last) last = commit;
    }
    if (last != InvalidXLogRecPtr && last > pg::flushed_up_to()) XLogFlush(last);
  });
}

}  // namespace outbox::worker
