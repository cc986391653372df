// When something is tried again.
#include <gtest/gtest.h>

#include "worker/retry.hpp"

namespace outbox::worker {
namespace {

using namespace std::chrono_literals;

TEST(Retry, IsDueAtFirst) { EXPECT_TRUE(Retry(100ms, 1s).due()); }

TEST(Retry, WaitsLongerEachTimeUpToALimit) {
  Retry retry(100ms, 500ms);
  const auto now = Retry::Clock::now();
  for (const auto pause : {100ms, 200ms, 400ms, 500ms, 500ms}) {
    retry.later(now);
    EXPECT_EQ(retry.at(), now + pause);
    EXPECT_FALSE(retry.due(now + pause - 1ms));
    EXPECT_TRUE(retry.due(now + pause));
  }
}

TEST(Retry, BeginsAnewWhenSomethingHasChanged) {
  Retry retry(100ms, 500ms);
  const auto now = Retry::Clock::now();
  retry.later(now);
  retry.later(now);
  retry.at_once();
  EXPECT_TRUE(retry.due(now));
  retry.later(now);
  EXPECT_EQ(retry.at(), now + 100ms);
}

}  // namespace
}  // namespace outbox::worker
