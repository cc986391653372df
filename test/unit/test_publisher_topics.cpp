#include <algorithm>
// Unknown and forbidden topics: found out before the first produce, refused after a grace, and nobody else waits.
#include "kafka_fixture.hpp"

namespace outbox::publish::test {
namespace {

TEST(PublisherTopics, RecordsOfAnUnknownTopicWaitWhileOthersFlowAndAreRefusedAfterTheGrace) {
  MockKafka kafka;
  kafka.create_topic("good", 1);
  kafka.set_topic_error("bad", RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART);
  Driver driver({{"bootstrap.servers", kafka.bootstrap()}});
  const auto bad = driver.submit({"bad", "k", "x"});
  for (int i = 0; i < 100; ++i) driver.submit({"good", "k", std::to_string(i)});
  ASSERT_TRUE(driver.poll_until([&] { return driver.published() == 100; }, 4s));
  EXPECT_EQ(driver.outcome(bad), nullptr);

  ASSERT_TRUE(driver.poll_until_all_done());
  ASSERT_EQ(driver.outcome(bad)->kind, Outcome::Kind::refused);
  EXPECT_EQ(driver.outcome(bad)->error_code, RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART);
  EXPECT_NE(driver.outcome(bad)->reason.find("topic \"bad\" is unknown"), std::string::npos);

  const auto at_once = driver.submit({"bad", "k", "y"});
  ASSERT_TRUE(driver.poll_until([&] { return driver.outcome(at_once) != nullptr; }, 1s));
  EXPECT_EQ(driver.outcome(at_once)->kind, Outcome::Kind::refused);

  kafka.set_topic_error("bad", RD_KAFKA_RESP_ERR_NO_ERROR);
  bool published = false;
  ASSERT_TRUE(driver.poll_until(
      [&] {
        if (driver.publisher().outstanding() > 0) return false;
        published = driver.outcome(driver.last_ticket())->kind == Outcome::Kind::published;
        if (!published) driver.submit({"bad", "k", "z"});
        return published;
      },
      10s));
}

// librdkafka before 2.12 frees the headers twice when it does not take a record, unless they are the caller's.
TEST(PublisherTopics, ATopicThatLibrdkafkaLosesBetweenTwoRecordsIsRefusedAndNothingElse) {
  constexpr int mended = 0x020c00ff;
  if (rd_kafka_version() >= mended) GTEST_SKIP() << "this librdkafka does not lose a topic by itself";
  MockKafka kafka;
  kafka.create_topic("t", 1);
  Driver driver({{"bootstrap.servers", kafka.bootstrap()}, {"topic.metadata.refresh.interval.ms", "50"}});
  const std::vector<std::pair<std::string, std::optional<std::string>>> headers{{"id", "x"}, {"type", "y"}};
  driver.submit({"t", "k", "x", headers});
  ASSERT_TRUE(driver.poll_until_all_done());
  kafka.set_topic_error("t", RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART);
  ASSERT_TRUE(driver.poll_until([&] {
    if (driver.refused() > 0) return true;
    if (driver.publisher().outstanding() == 0) driver.submit({"t", "k", "x", headers});
    return false;
  }));
  EXPECT_NE(driver.outcome(driver.last_ticket())->reason.find("unknown"), std::string::npos);
}

// librdkafka would ask for them for ever.
TEST(PublisherTopics, TopicsThatDoNotExistAreForgottenWithTheProducerThatWasAskedForThem) {
  MockKafka kafka;
  kafka.create_topic("good", 1);
  for (int i = 0; i < 20; ++i)
    kafka.set_topic_error("bad" + std::to_string(i), RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART);
  Driver driver({{"bootstrap.servers", kafka.bootstrap()}});
  for (int i = 0; i < 20; ++i) driver.submit({"bad" + std::to_string(i), "k", "x"});
  driver.submit({"good", "k", "x"});
  ASSERT_TRUE(driver.poll_until_all_done(20s));
  EXPECT_EQ(driver.refused(), 20U);
  const auto replaced = [&] {
    const auto lines = driver.publisher().take_log();
    return std::ranges::any_of(lines,
                               [](const LogLine& line) { return line.text.ends_with(": 20 topics do not exist"); });
  };
  ASSERT_TRUE(driver.poll_until(replaced, 20s));
  const auto again = driver.submit({"bad7", "k", "y"});
  ASSERT_TRUE(driver.poll_until([&] { return driver.outcome(again) != nullptr; }, 3s)) << "known to be absent";
  driver.submit({"good", "k", "z"});
  ASSERT_TRUE(driver.poll_until_all_done());
  EXPECT_EQ(driver.published(), 2U);
  EXPECT_EQ(driver.publisher().health().state, Health::State::ok);
}

TEST(PublisherTopics, ATopicCreatedDuringTheGraceIsPublishedTo) {
  MockKafka kafka;
  kafka.set_topic_error("late", RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART);
  Driver driver({{"bootstrap.servers", kafka.bootstrap()}});
  for (int i = 0; i < 50; ++i) driver.submit({"late", "k", std::to_string(i)});
  ASSERT_FALSE(driver.poll_until_all_done(1s));
  kafka.set_topic_error("late", RD_KAFKA_RESP_ERR_NO_ERROR);
  ASSERT_TRUE(driver.poll_until_all_done());
  EXPECT_EQ(driver.published(), 50U);
}

TEST(PublisherTopics, ATopicThatMayBeSeenButNotWrittenIsForbiddenAfterTheGrace) {
  MockKafka kafka;
  kafka.create_topic("t", 1);
  Driver driver({{"bootstrap.servers", kafka.bootstrap()}});
  kafka.fail_next(produce_api, std::vector(1000, RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED));
  for (int i = 0; i < 20; ++i) driver.submit({"t", "k", std::to_string(i)});
  ASSERT_TRUE(driver.poll_until_all_done());
  EXPECT_EQ(driver.refused(), 20U);
  EXPECT_NE(driver.outcome(1)->reason.find("forbidden"), std::string::npos) << driver.outcome(1)->reason;
}

TEST(PublisherTopics, ARightTakenAwayForAMomentCostsNothing) {
  MockKafka kafka;
  kafka.create_topic("t", 1);
  Driver driver({{"bootstrap.servers", kafka.bootstrap()}, {"linger.ms", "20"}});
  driver.submit({"t", "k", "0"});
  ASSERT_TRUE(driver.poll_until_all_done());
  kafka.fail_next(produce_api, std::vector(3, RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED));
  for (int i = 1; i <= 50; ++i) driver.submit({"t", "k", std::to_string(i)});
  ASSERT_TRUE(driver.poll_until_all_done());
  EXPECT_EQ(driver.published(), 51U);
  EXPECT_EQ(driver.refused(), 0U);
  const auto records = consume(kafka.bootstrap(), "t", 51);
  for (std::size_t i = 0; i < records.size(); ++i) EXPECT_EQ(records[i].payload, std::to_string(i));
}

TEST(PublisherTopics, AnOutageDuringTheLookupIsNotAnUnknownTopic) {
  MockKafka kafka;
  kafka.create_topic("t", 1);
  kafka.down();
  Driver driver({{"bootstrap.servers", kafka.bootstrap()}, {"reconnect.backoff.max.ms", "200"}});
  driver.submit({"t", "k", "x"});
  EXPECT_FALSE(driver.poll_until_all_done(7s));  // longer than the grace
  kafka.up();
  ASSERT_TRUE(driver.poll_until_all_done());
  EXPECT_EQ(driver.published(), 1U);
}

}  // namespace
}  // namespace outbox::publish::test
