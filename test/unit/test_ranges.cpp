// What a walk over a big window remembers for the next ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <tuple>

#include "claim/ranges.hpp"

namespace outbox::claim {
namespace {

struct Entry {
  std::int32_t segment;
  std::uint64_t xid;
  std::int64_t id;
};

// As in the index of each segment. Some transactions are far larger than a range.
std::vector<Entry> entries(std::mt19937& random, std::size_t count) {
  std::vector<Entry> found;
  std::int64_t id = 1;
  while (found.size() < count) {
    const std::uint64_t xid = 100 + found.size() / 50 + random() % 40;
    const std::size_t run = random() % 20 == 0 ? 100 + random() % 300 : 1 + random() % 5;
    const auto segment = static_cast<std::int32_t>(1 + found.size() / (count / 3 + 1));
    for (std::size_t i = 0; i < run; i++)
      found.push_back({segment, xid, id += static_cast<std::int64_t>(1 + random() % 3)});
  }
  std::ranges::sort(found, {}, [](const Entry& e) { return std::tuple(e.segment, e.xid, e.id); });
  return found;
}

bool within(const Range& range, const Entry& entry) {
  if (entry.segment != range.segment || entry.xid < range.first_xid || entry.xid > range.last_xid) return false;
  return !range.part || (entry.id >= range.min_id && entry.id <= range.max_id);
}

std::vector<Range> recorded(const std::vector<Entry>& all, std::size_t size) {
  Ranges ranges(size);
  for (const Entry& entry : all) ranges.add(entry.segment, entry.xid, entry.id);
  ranges.cut();
  return ranges.all();
}

class RangesOfAnySize : public testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(Sizes, RangesOfAnySize, testing::Values(1, 2, 7, 64, 1000, 100'000));

TEST_P(RangesOfAnySize, HoldEachEntryOnceAndTellItsInterval) {
  std::mt19937 random(1);
  const std::vector<Entry> all = entries(random, 5000);
  const std::vector<Range> ranges = recorded(all, GetParam());
  for (const Entry& entry : all)
    EXPECT_EQ(std::ranges::count_if(ranges, [&](const Range& range) { return within(range, entry); }), 1)
        << entry.segment << " " << entry.xid << " " << entry.id;
  for (const Range& range : ranges) {
    std::vector<std::int64_t> ids;
    for (const Entry& entry : all)
      if (within(range, entry)) ids.push_back(entry.id);
    ASSERT_EQ(ids.size(), range.count);
    EXPECT_EQ(std::ranges::min(ids), range.min_id);
    EXPECT_EQ(std::ranges::max(ids), range.max_id);
    EXPECT_LE(range.count, std::max<std::size_t>(GetParam(), 1));
  }
}

TEST_P(RangesOfAnySize, KnowAnIdUpToWhichThereIsEnough) {
  std::mt19937 random(2);
  const std::vector<Entry> all = entries(random, 5000);
  Ranges ranges(GetParam());
  for (const Entry& entry : all) ranges.add(entry.segment, entry.xid, entry.id);
  ranges.cut();
  for (const std::size_t wanted : {1UL, 10UL, 500UL, 4000UL, 100'000UL}) {
    for (const std::int64_t above : {0L, 17L, 5000L, 1'000'000L}) {
      const std::int64_t limit = ranges.enough(above, wanted);
      const auto there = std::ranges::count_if(all, [&](const Entry& e) { return e.id > above && e.id <= limit; });
      const auto in_all = std::ranges::count_if(all, [&](const Entry& e) { return e.id > above; });
      EXPECT_GE(static_cast<std::size_t>(there), std::min<std::size_t>(wanted, static_cast<std::size_t>(in_all)));
    }
  }
}

TEST(Ranges, DoNotReachOverACut) {
  Ranges ranges(1000);
  ranges.add(1, 10, 1);
  ranges.cut();
  ranges.add(1, 20, 2);
  ranges.add(1, 21, 3);
  ranges.cut();
  ASSERT_EQ(ranges.all().size(), 2U);
  EXPECT_EQ(ranges.all()[0].last_xid, 10U);
  EXPECT_EQ(ranges.all()[1].first_xid, 20U);
  EXPECT_EQ(ranges.all()[1].last_xid, 21U);
}

TEST(Ranges, OfNothingAreNone) {
  Ranges ranges;
  ranges.cut();
  EXPECT_TRUE(ranges.all().empty());
  EXPECT_EQ(ranges.enough(0, 1), std::numeric_limits<std::int64_t>::max());
}

}  // namespace
}  // namespace outbox::claim
