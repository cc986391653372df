// When the worker takes its next snapshot.
#include <gtest/gtest.h>

#include "worker/pace.hpp"

namespace outbox::worker {
namespace {

using namespace std::chrono_literals;
using Clock = Pace::Clock;

// Reads whenever the pace allows it, while commits come at an even rate; the longest time between two reads.
Clock::duration longest_wait(Pace& pace, Clock::time_point& now, double messages_a_second, Clock::duration length) {
  const Clock::time_point end = now + length;
  Clock::duration longest{};
  Clock::time_point read_at = now;
  double waiting = 0;
  for (; now < end; now += 100us) {
    waiting += messages_a_second / 10'000;
    if (waiting < 1 || pace.next() > now) continue;
    pace.read(static_cast<std::size_t>(waiting), now);
    waiting -= static_cast<double>(static_cast<std::size_t>(waiting));
    longest = std::max(longest, now - read_at);
    read_at = now;
  }
  return longest;
}

TEST(Pace, ReadsACommitAtOnceUntilManyCome) {
  Pace pace;
  Clock::time_point now{1h};
  EXPECT_LE(pace.next(), now);
  (void)longest_wait(pace, now, 1'000, 1s);
  EXPECT_LE(pace.next(), now);
}

TEST(Pace, LetsCommitsGatherForAFewMillisecondsWhenManyCome) {
  Pace pace;
  Clock::time_point now{1h};
  (void)longest_wait(pace, now, 2'000, 1s);
  const auto some = longest_wait(pace, now, 2'000, 1s);
  EXPECT_GT(some, 2ms);
  EXPECT_LT(some, 9ms);
  (void)longest_wait(pace, now, 5'000, 1s);
  EXPECT_GT(longest_wait(pace, now, 5'000, 1s), 9ms);
  EXPECT_LT(longest_wait(pace, now, 5'000, 1s), 11ms);
}

TEST(Pace, DoesNotLetMoreGatherThanIsWorthARequest) {
  Pace pace;
  Clock::time_point now{1h};
  (void)longest_wait(pace, now, 500'000, 1s);
  EXPECT_LE(longest_wait(pace, now, 500'000, 1s), 2ms);
}

TEST(Pace, ReadsAtOnceAgainWhenTheRushIsOver) {
  Pace pace;
  Clock::time_point now{1h};
  (void)longest_wait(pace, now, 5'000, 1s);
  now += 10s;
  EXPECT_LE(pace.next(), now);
  pace.read(1, now);
  EXPECT_LE(pace.next(), now);
}

}  // namespace
}  // namespace outbox::worker
