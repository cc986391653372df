// Turns candidates into messages: fetches each row by its tid and keeps it only if it is the row that the index meant and
// is visible. C++ code, in a transaction.
#pragma once

#include <span>

#include "claim/batch.hpp"
#include "claim/window.hpp"

namespace outbox::claim {

struct Fetched {
  std::size_t candidates = 0;  // how many candidates were used up, with and without a visible row
  bool rewritten = false;      // a leaf was rewritten: the remaining tids are void, walk again
};

// `snapshot`: MVCC, registered, at or past the window's end. Stops when the budget is used up, after at least one message.
Fetched fetch(std::span<const Candidate> candidates, const std::vector<Leaf>& leaves, Snapshot snapshot, int32 lane,
              std::uint32_t window, const Budget& budget, Batch& batch);

// Leaves out the candidates whose row is not visible or not theirs: savepoints that were rolled back. For an exact count
// of what is not read yet. False: a leaf was rewritten, and nothing is changed.
bool keep_visible(std::vector<Candidate>& candidates, const std::vector<Leaf>& leaves, Snapshot snapshot, int32 lane);

}  // namespace outbox::claim
