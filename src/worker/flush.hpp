// Nothing is published before the WAL of its transaction is flushed, also with synchronous_commit = off. C++ code.
#pragma once

#include "claim/batch.hpp"

namespace outbox::worker {

// Flushes the commits of the batch's messages where they are not flushed yet.
void flush_commits_of(const claim::Batch& batch);

}  // namespace outbox::worker
