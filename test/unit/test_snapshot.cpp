// Snapshots as plain values: which transactions are finished, and which snapshot is past another.
#include <gtest/gtest.h>

#include "claim/batch.hpp"
#include "claim/snapshot.hpp"

namespace outbox::claim {
namespace {

TEST(Snapshot, InTheEmptyOneNothingIsFinished) {
  const TransactionSnapshot empty;
  EXPECT_TRUE(empty.running(first_xid));
  EXPECT_TRUE(empty.running(first_xid + 1'000'000));
}

TEST(Snapshot, FinishedIsWhatIsNeitherInProgressNorLater) {
  const TransactionSnapshot snapshot{10, 20, {10, 13, 17}};
  EXPECT_TRUE(snapshot.finished(9));
  EXPECT_TRUE(snapshot.finished(11));
  EXPECT_TRUE(snapshot.finished(19));
  EXPECT_TRUE(snapshot.running(10));
  EXPECT_TRUE(snapshot.running(13));
  EXPECT_TRUE(snapshot.running(17));
  EXPECT_TRUE(snapshot.running(20));
}

TEST(Snapshot, IsPastAnotherWhenEverythingFinishedThereIsFinishedHere) {
  const TransactionSnapshot earlier{10, 20, {10, 13}};
  EXPECT_TRUE(earlier.at_or_past(earlier));
  EXPECT_TRUE((TransactionSnapshot{10, 20, {10}}).at_or_past(earlier));
  EXPECT_TRUE((TransactionSnapshot{13, 30, {13, 25}}).at_or_past(earlier));
  EXPECT_FALSE((TransactionSnapshot{10, 19, {10, 13}}).at_or_past(earlier));
  EXPECT_FALSE((TransactionSnapshot{10, 30, {10, 15}}).at_or_past(earlier));
  EXPECT_FALSE(TransactionSnapshot{}.at_or_past(earlier));
}

TEST(Arena, KeepsWhatWasCopiedWhereItWas) {
  Arena arena;
  std::vector<std::pair<std::string, std::string_view>> copies;
  for (std::size_t size : {0UL, 1UL, 100UL, 262'144UL, 5UL, 1'000'000UL, 300'000UL, 7UL}) {
    std::string original(size, static_cast<char>('a' + copies.size()));
    const std::string_view copy = arena.copy(original.data(), original.size());
    copies.emplace_back(std::move(original), copy);
  }
  for (const auto& [original, copy] : copies) EXPECT_EQ(original, copy);
}

TEST(Arena, IsFilledAgainAfterItWasCleared) {
  Arena arena;
  for (std::size_t round = 0; round < 4; round++) {
    std::vector<std::pair<std::string, std::string_view>> copies;
    for (std::size_t size : {200'000UL, 1'000'000UL, 200'000UL - round, 262'144UL, 300'000UL * round, 3UL}) {
      std::string original(size, static_cast<char>('a' + copies.size() + round));
      const std::string_view copy = arena.copy(original.data(), original.size());
      copies.emplace_back(std::move(original), copy);
    }
    std::size_t total = 0;
    for (const auto& [original, copy] : copies) {
      EXPECT_EQ(original, copy);
      total += copy.size();
    }
    EXPECT_EQ(arena.bytes(), total);
    arena.clear();
    EXPECT_EQ(arena.bytes(), 0U);
  }
}

}  // namespace
}  // namespace outbox::claim
