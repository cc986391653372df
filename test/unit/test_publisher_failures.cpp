// What Kafka refuses, and what it only delays.
#include "kafka_fixture.hpp"

namespace outbox::publish::test {
namespace {

std::vector<std::string> payloads(const std::vector<Received>& records) {
  std::vector<std::string> texts;
  texts.reserve(records.size());
  for (const auto& record : records) texts.push_back(record.payload.value_or("<none>"));
  return texts;
}

std::vector<std::string> numbers(int from, int to) {
  std::vector<std::string> texts;
  for (int i = from; i <= to; ++i) texts.push_back(std::to_string(i));
  return texts;
}

// Publishes one record, so that the topic is open and the next records make a batch.
void open_topic(Driver& driver, const std::string& topic) {
  driver.submit({topic, "k", "0"});
  ASSERT_TRUE(driver.poll_until_all_done());
}

class PublisherFailures : public testing::Test {
 protected:
  void SetUp() override { kafka.create_topic("t", 1); }

  MockKafka kafka;
  // A little linger makes one batch of what is submitted in one go.
  Driver driver{{{"bootstrap.servers", kafka.bootstrap()}, {"linger.ms", "50"}}};
};

TEST_F(PublisherFailures, ARefusedBatchIsSentAgainOneByOneAndInOrder) {
  open_topic(driver, "t");
  kafka.fail_next(produce_api, {RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE});
  for (const auto& text : numbers(1, 20)) driver.submit({"t", "k", text});
  ASSERT_TRUE(driver.poll_until_all_done());
  EXPECT_EQ(driver.published(), 21U);
  EXPECT_EQ(driver.refused(), 0U);
  EXPECT_EQ(payloads(consume(kafka.bootstrap(), "t", 21)), numbers(0, 20));
}

TEST_F(PublisherFailures, OnlyWhatIsRefusedAloneIsRefused) {
  open_topic(driver, "t");
  kafka.fail_next(produce_api, {RD_KAFKA_RESP_ERR_INVALID_RECORD, RD_KAFKA_RESP_ERR_INVALID_RECORD});
  for (const auto& text : numbers(1, 20)) driver.submit({"t", "k", text});
  ASSERT_TRUE(driver.poll_until_all_done());
  EXPECT_EQ(driver.published(), 20U);
  ASSERT_EQ(driver.refused(), 1U);
  const Outcome* outcome = driver.outcome(2);
  ASSERT_EQ(outcome->kind, Outcome::Kind::refused);
  EXPECT_EQ(outcome->error_code, RD_KAFKA_RESP_ERR_INVALID_RECORD);
  EXPECT_NE(outcome->reason.find("topic \"t\""), std::string::npos) << outcome->reason;
  auto expected = numbers(0, 20);
  expected.erase(expected.begin() + 1);
  EXPECT_EQ(payloads(consume(kafka.bootstrap(), "t", 20)), expected);
}

TEST_F(PublisherFailures, WhatIsSubmittedDuringIsolationFollowsBehind) {
  open_topic(driver, "t");
  kafka.delay(20ms);
  kafka.fail_next(produce_api, {RD_KAFKA_RESP_ERR_INVALID_TIMESTAMP});
  for (const auto& text : numbers(1, 10)) driver.submit({"t", "k", text});
  ASSERT_TRUE(driver.poll_until([&] { return driver.published() >= 3; }));
  for (const auto& text : numbers(11, 30)) driver.submit({"t", "k", text});
  ASSERT_TRUE(driver.poll_until_all_done());
  EXPECT_EQ(driver.refused(), 0U);
  EXPECT_EQ(payloads(consume(kafka.bootstrap(), "t", 31)), numbers(0, 30));
}

TEST_F(PublisherFailures, OtherTopicsGoOnDuringIsolation) {
  kafka.create_topic("other", 1);
  open_topic(driver, "t");
  open_topic(driver, "other");
  kafka.fail_next(produce_api, std::vector(1, RD_KAFKA_RESP_ERR_INVALID_RECORD));
  kafka.delay(30ms);
  for (const auto& text : numbers(1, 50)) driver.submit({"t", "k", text});
  ASSERT_TRUE(driver.poll_until([&] { return driver.published() > 4; }));
  const auto ticket = driver.submit({"other", "k", "x"});
  ASSERT_TRUE(driver.poll_until([&] { return driver.outcome(ticket) != nullptr; }));
  EXPECT_LT(driver.published(), 50U) << "the topic in isolation was not slower, so this shows nothing";
  ASSERT_TRUE(driver.poll_until_all_done());
  EXPECT_EQ(driver.published(), 53U);
}

TEST_F(PublisherFailures, BrokerTroubleIsNeverAnOutcomeAndKeepsTheOrder) {
  open_topic(driver, "t");
  kafka.fail_next(produce_api, {RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION, RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
                                RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT, RD_KAFKA_RESP_ERR_KAFKA_STORAGE_ERROR});
  for (const auto& text : numbers(1, 200)) driver.submit({"t", "k", text});
  ASSERT_TRUE(driver.poll_until_all_done());
  EXPECT_EQ(driver.published(), 201U);
  EXPECT_EQ(driver.refused(), 0U);
}

TEST_F(PublisherFailures, AFatalErrorMakesANewProducerAndLosesNothing) {
  open_topic(driver, "t");
  kafka.fail_next(produce_api, {RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER});
  for (const auto& text : numbers(1, 500)) driver.submit({"t", "k", text});
  ASSERT_TRUE(driver.poll_until_all_done());
  EXPECT_EQ(driver.published(), 501U);
  EXPECT_EQ(driver.refused(), 0U);
  EXPECT_EQ(driver.repeated(), 0U);
  EXPECT_EQ(driver.publisher().health().state, Health::State::ok);
  EXPECT_EQ(payloads(consume(kafka.bootstrap(), "t", 501)), numbers(0, 500));
  bool said = false;
  for (const auto& line : driver.publisher().take_log())
    said |= line.text.find("producer is replaced") != std::string::npos;
  EXPECT_TRUE(said);
}

// One request in flight: the embedded Kafka, other than a real one, takes what comes behind a batch that it has refused.
class ProducerErrors : public testing::TestWithParam<rd_kafka_resp_err_t> {
 protected:
  void SetUp() override { kafka.create_topic("t", 3); }

  MockKafka kafka;
  Driver driver{{{"bootstrap.servers", kafka.bootstrap()},
                 {"linger.ms", "5"},
                 {"batch.num.messages", "10"},
                 {"max.in.flight", "1"}}};
};

TEST_P(ProducerErrors, CostNothingAndEveryOutcomeIsThatOfItsRecord) {
  constexpr int count = 600;
  open_topic(driver, "t");
  kafka.delay(3ms);
  constexpr auto fine = RD_KAFKA_RESP_ERR_NO_ERROR;
  kafka.fail_next(produce_api, {fine, fine, fine, GetParam(), fine, fine, fine, fine, fine, fine, fine, GetParam()});
  for (int i = 1; i <= count; ++i) driver.submit({"t", std::to_string(i % 7), std::to_string(i)});
  ASSERT_TRUE(driver.poll_until_all_done(60s));
  EXPECT_EQ(driver.published(), count + 1U);
  EXPECT_EQ(driver.refused(), 0U);
  EXPECT_EQ(driver.repeated(), 0U);
  EXPECT_EQ(driver.publisher().health().state, Health::State::ok);

  // Behind the others librdkafka takes a new epoch and goes on by itself, until we see the report.
  const bool in_order = GetParam() == RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER ||
                        GetParam() == RD_KAFKA_RESP_ERR_UNKNOWN_PRODUCER_ID;
  const auto records = consume_all(kafka.bootstrap(), "t");
  EXPECT_EQ(records.size(), count + 1U) << "what was on its way and stored is not sent again";
  std::map<std::string, int> last;
  for (const auto& record : records) {
    const int number = std::stoi(*record.payload);
    const Outcome* outcome = driver.outcome(static_cast<std::uint64_t>(number) + 1);
    EXPECT_EQ(std::pair(outcome->partition, outcome->offset), std::pair(record.partition, record.offset)) << number;
    const auto [before, first] = last.try_emplace(*record.key, -1);
    const int previous = std::exchange(before->second, number);
    EXPECT_TRUE(!in_order || previous < number) << number << " after " << previous << ", key " << *record.key;
  }
}

INSTANTIATE_TEST_SUITE_P(AllKinds, ProducerErrors,
                         testing::Values(RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER,
                                         RD_KAFKA_RESP_ERR_UNKNOWN_PRODUCER_ID,
                                         RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH, RD_KAFKA_RESP_ERR_PRODUCER_FENCED,
                                         RD_KAFKA_RESP_ERR_INVALID_PRODUCER_ID_MAPPING),
                         [](const auto& error) { return std::string(rd_kafka_err2name(error.param)); });

TEST_F(PublisherFailures, AProducerThatFailsAgainAndAgainIsNotReplacedInAHotLoop) {
  open_topic(driver, "t");
  kafka.fail_next(produce_api, std::vector(4, RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER));
  const auto begin = Clock::now();
  driver.submit({"t", "k", "1"});
  ASSERT_TRUE(driver.poll_until([&] { return driver.publisher().health().state == Health::State::backing_off; }));
  EXPECT_FALSE(driver.publisher().health().reason.empty());
  ASSERT_TRUE(driver.poll_until_all_done(60s));
  EXPECT_EQ(driver.published(), 2U);
  EXPECT_GT(Clock::now() - begin, 1s);
}

TEST_F(PublisherFailures, AProducerIdThatIsNotGivenOutBacksOffWithAReason) {
  MockKafka strict;
  strict.fail_next(init_producer_id_api, std::vector(3, RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED));
  Driver fresh({{"bootstrap.servers", strict.bootstrap()}});
  fresh.submit({"t", "k", "1"});
  ASSERT_TRUE(fresh.poll_until([&] { return fresh.publisher().health().state == Health::State::backing_off; }));
  EXPECT_EQ(fresh.refused(), 0U);
  ASSERT_TRUE(fresh.poll_until_all_done(60s));
  EXPECT_EQ(fresh.published(), 1U);
  EXPECT_EQ(fresh.publisher().health().state, Health::State::ok);
}

}  // namespace
}  // namespace outbox::publish::test
