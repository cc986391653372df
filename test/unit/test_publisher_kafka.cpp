// What only a real broker checks: sizes, timestamps, compacted topics. Runs where OUTBOX_TEST_BOOTSTRAP names a broker
// that does not create topics by itself; skipped elsewhere.
#include <cstdlib>
#include <random>

#include "../../src/publish/limits.hpp"
#include "kafka_fixture.hpp"

namespace outbox::publish::test {
namespace {

using NewTopicHandle = std::unique_ptr<rd_kafka_NewTopic_t, Deleter<rd_kafka_NewTopic_destroy>>;
using Configs = std::vector<std::pair<std::string, std::string>>;

std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

class PublisherKafka : public testing::Test {
 protected:
  void SetUp() override {
    const char* given = std::getenv("OUTBOX_TEST_BOOTSTRAP");
    if (given == nullptr) GTEST_SKIP() << "OUTBOX_TEST_BOOTSTRAP is not set";
    bootstrap = given;
    std::array<char, 512> text{};
    ConfHandle conf(rd_kafka_conf_new());
    rd_kafka_conf_set(conf.get(), "bootstrap.servers", given, text.data(), text.size());
    admin.reset(rd_kafka_new(RD_KAFKA_PRODUCER, conf.release(), text.data(), text.size()));
    topic = "t-" + std::to_string(std::random_device{}());
  }

  void wait(rd_kafka_queue_t* queue) {
    constexpr int limit_ms = 10'000;
    const EventHandle event(rd_kafka_queue_poll(queue, limit_ms));
    ASSERT_TRUE(event);
    ASSERT_EQ(rd_kafka_event_error(event.get()), RD_KAFKA_RESP_ERR_NO_ERROR);
  }
  void create(const Configs& configs, int partitions = 1) {
    std::array<char, 512> text{};
    const NewTopicHandle handle(rd_kafka_NewTopic_new(topic.c_str(), partitions, 1, text.data(), text.size()));
    for (const auto& [name, value] : configs) rd_kafka_NewTopic_set_config(handle.get(), name.c_str(), value.c_str());
    const QueueHandle queue(rd_kafka_queue_new(admin.get()));
    auto* pointer = handle.get();
    rd_kafka_CreateTopics(admin.get(), &pointer, 1, nullptr, queue.get());
    wait(queue.get());
  }
  void alter(const Configs& configs) {
    const ResourceHandle handle(rd_kafka_ConfigResource_new(RD_KAFKA_RESOURCE_TOPIC, topic.c_str()));
    for (const auto& [name, value] : configs)
      rd_kafka_ConfigResource_set_config(handle.get(), name.c_str(), value.c_str());
    const QueueHandle queue(rd_kafka_queue_new(admin.get()));
    auto* pointer = handle.get();
    rd_kafka_AlterConfigs(admin.get(), &pointer, 1, nullptr, queue.get());
    wait(queue.get());
  }
  // A payload that makes the record of key "k" exactly this large in Kafka.
  static std::string filling(std::size_t batch) {
    std::string text(batch, 'x');
    while (batch_bytes({1, "t", "k", text, {}, 0}) > batch) text.pop_back();
    return text;
  }

  std::string bootstrap;
  std::string topic;
  KafkaHandle admin;
};

TEST_F(PublisherKafka, TheSizeOfARecordIsComputedAsKafkaDoes) {
  create({{"max.message.bytes", "2000"}});
  Driver driver({{"bootstrap.servers", bootstrap}});
  const auto fits = driver.submit({topic, "k", filling(2000)});
  const auto large = driver.submit({topic, "k", filling(2001)});
  ASSERT_TRUE(driver.poll_until_all_done());
  EXPECT_EQ(driver.outcome(fits)->kind, Outcome::Kind::published);
  ASSERT_EQ(driver.outcome(large)->kind, Outcome::Kind::refused);
  EXPECT_EQ(driver.outcome(large)->error_code, RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE);
  EXPECT_NE(driver.outcome(large)->reason.find("2001 bytes"), std::string::npos) << driver.outcome(large)->reason;
  EXPECT_NE(driver.outcome(large)->reason.find("is 2000;"), std::string::npos) << driver.outcome(large)->reason;
}

TEST_F(PublisherKafka, TheBrokerAgreesByteForByteWhenItIsTheOneThatJudges) {
  create({});
  Driver driver({{"bootstrap.servers", bootstrap}});
  driver.submit({topic, "k", "opens the topic with its old limit"});
  ASSERT_TRUE(driver.poll_until_all_done());
  alter({{"max.message.bytes", "3000"}});
  const auto fits = driver.submit({topic, "k", filling(3000)});
  ASSERT_TRUE(driver.poll_until_all_done());
  const auto large = driver.submit({topic, "k", filling(3001)});
  ASSERT_TRUE(driver.poll_until_all_done());
  EXPECT_EQ(driver.outcome(fits)->kind, Outcome::Kind::published);
  EXPECT_EQ(driver.outcome(large)->kind, Outcome::Kind::refused);
}

TEST_F(PublisherKafka, ManySmallRecordsWhoseSumExceedsTheLimitAllArrive) {
  create({{"max.message.bytes", "1000"}});
  Driver driver({{"bootstrap.servers", bootstrap}});
  for (int i = 0; i < 200; ++i) driver.submit({topic, "k", std::string(300, 'a') + std::to_string(i)});
  ASSERT_TRUE(driver.poll_until_all_done());
  EXPECT_EQ(driver.published(), 200U);
  const auto records = consume(bootstrap, topic, 200);
  for (std::size_t i = 0; i < records.size(); ++i) EXPECT_TRUE(records[i].payload->ends_with('a' + std::to_string(i)));
}

TEST_F(PublisherKafka, ALimitLoweredJustNowCostsOnlyWhatIsTooLarge) {
  create({});
  Driver driver({{"bootstrap.servers", bootstrap}, {"linger.ms", "20"}});
  driver.submit({topic, "k", "0"});
  ASSERT_TRUE(driver.poll_until_all_done());
  alter({{"max.message.bytes", "1500"}});
  std::vector<std::string> expected{"0"};
  std::uint64_t large = 0;
  for (int i = 1; i <= 60; ++i) {
    auto payload = std::to_string(i) + std::string(i == 30 ? 2000 : 100, 'x');
    const auto ticket = driver.submit({topic, "k", payload});
    if (i == 30) large = ticket;
    if (i != 30) expected.push_back(payload);
  }
  ASSERT_TRUE(driver.poll_until_all_done());
  EXPECT_EQ(driver.refused(), 1U);
  EXPECT_EQ(driver.outcome(large)->kind, Outcome::Kind::refused);
  std::vector<std::string> arrived;
  for (const auto& record : consume(bootstrap, topic, 60)) arrived.push_back(*record.payload);
  EXPECT_EQ(arrived, expected);
}

TEST_F(PublisherKafka, TimesOutOfRangeAreRefusedAndSayWhich) {
  create({{"message.timestamp.before.max.ms", "60000"}, {"message.timestamp.after.max.ms", "60000"}});
  Driver driver({{"bootstrap.servers", bootstrap}});
  const auto old = driver.submit({topic, "k", "x", {}, now_ms() - 120'000});
  const auto good = driver.submit({topic, "k", "x", {}, now_ms() - 30'000});
  const auto early = driver.submit({topic, "k", "x", {}, now_ms() + 120'000});
  ASSERT_TRUE(driver.poll_until_all_done());
  EXPECT_EQ(driver.outcome(good)->kind, Outcome::Kind::published);
  EXPECT_NE(driver.outcome(old)->reason.find("message.timestamp.before.max.ms"), std::string::npos);
  EXPECT_NE(driver.outcome(early)->reason.find("message.timestamp.after.max.ms"), std::string::npos);
}

TEST_F(PublisherKafka, ACompactedTopicTakesNoRecordWithoutAKey) {
  create({{"cleanup.policy", "compact"}});
  Driver driver({{"bootstrap.servers", bootstrap}});
  const auto keyed = driver.submit({topic, "k", std::nullopt});
  const auto keyless = driver.submit({topic, std::nullopt, "x"});
  ASSERT_TRUE(driver.poll_until_all_done());
  EXPECT_EQ(driver.outcome(keyed)->kind, Outcome::Kind::published);
  ASSERT_EQ(driver.outcome(keyless)->kind, Outcome::Kind::refused);
  EXPECT_NE(driver.outcome(keyless)->reason.find("no key"), std::string::npos);
}

TEST_F(PublisherKafka, APolicySetJustNowRefusesOnlyTheKeylessRecord) {
  create({});
  Driver driver({{"bootstrap.servers", bootstrap}, {"linger.ms", "20"}});
  driver.submit({topic, "k", "0"});
  ASSERT_TRUE(driver.poll_until_all_done());
  alter({{"cleanup.policy", "compact"}});
  std::uint64_t keyless = 0;
  for (int i = 0; i < 20; ++i) {
    const auto ticket = driver.submit({topic, i == 7 ? std::nullopt : std::optional<std::string>("k"), "x"});
    if (i == 7) keyless = ticket;
  }
  ASSERT_TRUE(driver.poll_until_all_done());
  EXPECT_EQ(driver.refused(), 1U);
  EXPECT_EQ(driver.outcome(keyless)->kind, Outcome::Kind::refused);
}

TEST_F(PublisherKafka, WithCompressionTheBrokerJudgesTheSize) {
  create({{"max.message.bytes", "5000"}});
  Driver driver({{"bootstrap.servers", bootstrap}, {"compression.type", "lz4"}});
  const auto squeezable = driver.submit({topic, "k", std::string(100'000, 'x')});
  std::string noise(50'000, '\0');
  std::mt19937 random(1);
  for (auto& byte : noise) byte = static_cast<char>(random());
  const auto too_large = driver.submit({topic, "k", noise});
  const auto after = driver.submit({topic, "k", "small"});
  ASSERT_TRUE(driver.poll_until_all_done());
  EXPECT_EQ(driver.outcome(squeezable)->kind, Outcome::Kind::published);
  EXPECT_EQ(driver.outcome(too_large)->kind, Outcome::Kind::refused);
  EXPECT_EQ(driver.outcome(after)->kind, Outcome::Kind::published);
}

TEST_F(PublisherKafka, LargeRecordsPassWhenBothSidesAllowThem) {
  create({{"max.message.bytes", "6000000"}});
  Driver driver({{"bootstrap.servers", bootstrap}}, 5'000'000);
  for (int i = 0; i < 5; ++i) driver.submit({topic, "k", std::string(5'000'000, static_cast<char>('a' + i))});
  ASSERT_TRUE(driver.poll_until_all_done());
  EXPECT_EQ(driver.published(), 5U);
}

TEST_F(PublisherKafka, AnUnknownTopicIsRefusedAndWorksOnceItIsCreated) {
  Driver driver({{"bootstrap.servers", bootstrap}});
  const auto lost = driver.submit({topic, "k", "x"});
  ASSERT_TRUE(driver.poll_until_all_done());
  ASSERT_EQ(driver.outcome(lost)->kind, Outcome::Kind::refused);
  EXPECT_NE(driver.outcome(lost)->reason.find("unknown"), std::string::npos);
  create({});
  ASSERT_TRUE(driver.poll_until(
      [&] {
        if (driver.publisher().outstanding() > 0) return false;
        if (driver.published() > 0) return true;
        driver.submit({topic, "k", "y"});
        return false;
      },
      10s));
}

}  // namespace
}  // namespace outbox::publish::test
