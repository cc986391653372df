// The size Kafka will see, and what a topic's limits refuse.
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "../../src/publish/limits.hpp"

namespace outbox::publish::test {
namespace {

constexpr std::int64_t now_ms = 1'800'000'000'000;

Record record(std::optional<std::string_view> key, std::optional<std::string_view> payload) {
  return {1, "orders", key, payload, {}, now_ms};
}

TEST(Limits, ABatchOfOneRecordIsCountedByteForByte) {
  // 61 batch + 1 length + 3 attributes and deltas + 1 key length + 1 payload length + 1 header count
  EXPECT_EQ(batch_bytes(record(std::nullopt, std::nullopt)), 68U);
  EXPECT_EQ(batch_bytes(record("", "")), 68U);
  EXPECT_EQ(batch_bytes(record("k", "v")), 70U);
  const std::array<Header, 2> headers{Header{"id", "x"}, Header{"none", std::nullopt}};
  Record with_headers = record("k", "v");
  with_headers.headers = headers;
  EXPECT_EQ(batch_bytes(with_headers), 70U + 1 + 2 + 1 + 1 + 1 + 4 + 1);
}

TEST(Limits, LengthsTakeOneMoreByteFrom64On) {
  const std::string text(64, 'x');
  const auto shorter = batch_bytes(record(std::nullopt, std::string_view(text).substr(0, 63)));
  // Both the payload's length and the record's own length grow: the latter did so before.
  EXPECT_EQ(batch_bytes(record(std::nullopt, text)), shorter + 2);
}

TEST(Limits, WithoutLimitsNothingIsRefused) {
  const std::string large(1'000'000, 'x');
  EXPECT_FALSE(refuse_beforehand(record(std::nullopt, large), {}, 0, false));
}

TEST(Limits, ASizeIsRefusedBeyondTheLimitAndTheReasonNamesWhatToDo) {
  Limits limits;
  limits.max_message_bytes = 70;
  EXPECT_FALSE(refuse_beforehand(record("k", "v"), limits, now_ms, false));
  limits.max_message_bytes = 69;
  const auto refused = refuse_beforehand(record("k", "v"), limits, now_ms, false);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->error_code, RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE);
  for (const auto* part : {"\"orders\"", "70", "69", "max.message.bytes"}) {
    EXPECT_NE(refused->reason.find(part), std::string::npos) << refused->reason;
  }
  EXPECT_FALSE(refuse_beforehand(record("k", "v"), limits, now_ms, true)) << "compressed, its size is not known";
}

TEST(Limits, TimesAreRefusedOutsideTheRangeInBothDirections) {
  Limits limits;
  limits.before_max_ms = 1000;
  limits.after_max_ms = 500;
  Record one = record("k", "v");
  const auto refused_at = [&](std::int64_t time) {
    one.timestamp_ms = time;
    return refuse_beforehand(one, limits, now_ms, false).has_value();
  };
  EXPECT_FALSE(refused_at(now_ms - 1000));
  EXPECT_TRUE(refused_at(now_ms - 1001));
  EXPECT_FALSE(refused_at(now_ms + 500));
  EXPECT_TRUE(refused_at(now_ms + 501));
}

TEST(Limits, OnlyACompactedTopicRefusesARecordWithoutAKey) {
  Limits limits;
  EXPECT_FALSE(refuse_beforehand(record(std::nullopt, "v"), limits, now_ms, false));
  limits.compacted = true;
  EXPECT_TRUE(refuse_beforehand(record(std::nullopt, "v"), limits, now_ms, false));
  EXPECT_FALSE(refuse_beforehand(record("", "v"), limits, now_ms, false)) << "an empty key is a key";
}

}  // namespace
}  // namespace outbox::publish::test
