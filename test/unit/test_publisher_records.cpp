// What arrives on the topic is what was submitted.
#include "kafka_fixture.hpp"

namespace outbox::publish::test {
namespace {

TEST(PublisherRecords, KeyPayloadHeadersAndTimestampArriveByteForByte) {
  MockKafka kafka;
  kafka.create_topic("orders", 1);
  Driver driver({{"bootstrap.servers", kafka.bootstrap()}});
  const std::string binary("\x00\xff\x80 a", 5);
  const auto ticket = driver.submit(
      {"orders", binary, "payload" + binary, {{"id", "x"}, {"n", std::nullopt}, {"n", ""}}, 1'700'000'000'123});
  ASSERT_TRUE(driver.poll_until_all_done());

  const Outcome* outcome = driver.outcome(ticket);
  ASSERT_NE(outcome, nullptr);
  EXPECT_EQ(outcome->kind, Outcome::Kind::published);
  EXPECT_EQ(outcome->partition, 0);
  EXPECT_EQ(outcome->offset, 0);
  const auto record = consume(kafka.bootstrap(), "orders", 1).front();
  EXPECT_EQ(record.key, binary);
  EXPECT_EQ(record.payload, "payload" + binary);
  EXPECT_EQ(record.timestamp_ms, 1'700'000'000'123);
  ASSERT_EQ(record.headers.size(), 3U);
  EXPECT_EQ(record.headers[0], std::pair("id" + std::string(), std::optional<std::string>("x")));
  EXPECT_EQ(record.headers[1].second, std::nullopt);
  EXPECT_EQ(record.headers[2].second, "");
}

TEST(PublisherRecords, NoKeyIsNotAnEmptyKeyAndATombstoneIsNotAnEmptyPayload) {
  MockKafka kafka;
  kafka.create_topic("t", 1);
  Driver driver({{"bootstrap.servers", kafka.bootstrap()}});
  driver.submit({"t", std::nullopt, ""});
  driver.submit({"t", "", std::nullopt});
  ASSERT_TRUE(driver.poll_until_all_done());
  const auto records = consume(kafka.bootstrap(), "t", 2);
  EXPECT_EQ(records[0].key, std::nullopt);
  EXPECT_EQ(records[0].payload, "");
  EXPECT_EQ(records[1].key, "");
  EXPECT_EQ(records[1].payload, std::nullopt);
}

TEST(PublisherRecords, PartitionsAreThoseThatJavaClientsChoose) {
  MockKafka kafka;
  kafka.create_topic("fifteen", 15);
  kafka.create_topic("ten", 10);
  Driver driver({{"bootstrap.servers", kafka.bootstrap()}});
  const auto first = driver.submit({"fifteen", "TT0124", "x"});
  const auto second = driver.submit({"ten", "354afe16-939a-4ea8-8e17-8bb0840b6886", "x"});
  ASSERT_TRUE(driver.poll_until_all_done());
  EXPECT_EQ(driver.outcome(first)->partition, 10);
  EXPECT_EQ(driver.outcome(second)->partition, 4);
}

TEST(PublisherRecords, TicketsMayHaveGaps) {
  MockKafka kafka;
  kafka.create_topic("t", 1);
  Driver driver({{"bootstrap.servers", kafka.bootstrap()}});
  std::vector<std::uint64_t> tickets;
  for (int i = 0; i < 100; ++i) {
    driver.skip_tickets(static_cast<std::uint64_t>(i) * 1'000'003);
    tickets.push_back(driver.submit({"t", "k", std::to_string(i)}));
  }
  ASSERT_TRUE(driver.poll_until_all_done());
  for (std::size_t i = 0; i < tickets.size(); ++i) {
    ASSERT_NE(driver.outcome(tickets[i]), nullptr);
    EXPECT_EQ(driver.outcome(tickets[i])->offset, static_cast<std::int64_t>(i));
  }
}

TEST(PublisherRecords, RecordsOfOneKeyKeepTheirOrder) {
  MockKafka kafka;
  kafka.create_topic("t", 4);
  Driver driver({{"bootstrap.servers", kafka.bootstrap()}});
  constexpr int count = 5000;
  for (int i = 0; i < count; ++i) driver.submit({"t", std::to_string(i % 7), std::to_string(i)});
  ASSERT_TRUE(driver.poll_until_all_done());
  std::map<std::string, int> last;
  for (const auto& record : consume(kafka.bootstrap(), "t", count)) {
    const int number = std::stoi(*record.payload);
    const auto [before, first] = last.try_emplace(*record.key, -1);
    EXPECT_LT(before->second, number);
    before->second = number;
  }
}

}  // namespace
}  // namespace outbox::publish::test
