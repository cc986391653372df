// Brokers that are away, queues that are full, ends that must not hang, threads that must not see signals.
#include <filesystem>
#include <fstream>

#include "kafka_fixture.hpp"

namespace outbox::publish::test {
namespace {

TEST(PublisherBrokers, ABrokerThatIsDownAtStartBacksOffAndRecovers) {
  MockKafka kafka;
  kafka.create_topic("t", 1);
  kafka.down();
  Driver driver({{"bootstrap.servers", kafka.bootstrap()}});
  EXPECT_EQ(driver.publisher().health().state, Health::State::ok);
  for (int i = 0; i < 10; ++i) driver.submit({"t", "k", std::to_string(i)});
  ASSERT_TRUE(driver.poll_until([&] { return driver.publisher().health().state == Health::State::backing_off; }));
  EXPECT_NE(driver.publisher().health().reason.find("all brokers are down"), std::string::npos);
  EXPECT_EQ(driver.refused(), 0U);
  kafka.up();
  ASSERT_TRUE(driver.poll_until_all_done());
  EXPECT_EQ(driver.published(), 10U);
  EXPECT_EQ(driver.publisher().health().state, Health::State::ok);
}

TEST(PublisherBrokers, ABrokerThatFailsUnderLoadLosesNothing) {
  MockKafka kafka;
  kafka.create_topic("t", 3);
  Driver driver({{"bootstrap.servers", kafka.bootstrap()}});
  for (int i = 0; i < 2000; ++i) {
    driver.submit({"t", std::to_string(i % 10), std::to_string(i)});
    if (i == 700) kafka.down();
    if (i == 1500) kafka.up();
  }
  ASSERT_TRUE(driver.poll_until_all_done());
  EXPECT_EQ(driver.published(), 2000U);
  EXPECT_EQ(driver.repeated(), 0U);
}

TEST(PublisherBrokers, AnIdlePublisherNoticesThatTheBrokerIsBack) {
  MockKafka kafka;
  kafka.create_topic("t", 1);
  Driver driver({{"bootstrap.servers", kafka.bootstrap()}});
  driver.submit({"t", "k", "x"});
  ASSERT_TRUE(driver.poll_until_all_done());
  kafka.down();
  if (!driver.poll_until([&] { return driver.publisher().health().state == Health::State::backing_off; }, 5s)) {
    GTEST_SKIP() << "this librdkafka does not report a lost connection that nobody needs";
  }
  kafka.up();
  ASSERT_TRUE(driver.poll_until([&] { return driver.publisher().health().state == Health::State::ok; }));
}

TEST(PublisherBrokers, SilenceWithoutAnErrorIsTroubleToo) {
  MockKafka kafka;
  kafka.create_topic("t", 1);
  Driver driver({{"bootstrap.servers", kafka.bootstrap()}});
  driver.submit({"t", "k", "x"});
  ASSERT_TRUE(driver.poll_until_all_done());
  kafka.delay(9s);
  driver.submit({"t", "k", "y"});
  ASSERT_TRUE(driver.poll_until([&] { return driver.publisher().health().state == Health::State::backing_off; }, 8s));
  EXPECT_EQ(driver.published(), 1U);
  ASSERT_TRUE(driver.poll_until_all_done());
  EXPECT_EQ(driver.publisher().health().state, Health::State::ok);
}

TEST(PublisherBrokers, APollIsShortWhileTheBrokerIsDown) {
  MockKafka kafka;
  kafka.create_topic("t", 1);
  kafka.down();
  Driver driver({{"bootstrap.servers", kafka.bootstrap()}});
  for (int i = 0; i < 20; ++i) driver.submit({"topic" + std::to_string(i), "k", "x"});
  auto longest = Clock::duration::zero();
  driver.poll_until(
      [&] {
        const auto begin = Clock::now();
        driver.poll_once();
        longest = std::max(longest, Clock::now() - begin);
        return false;
      },
      3s);
  EXPECT_LT(longest, 400ms);
}

TEST(PublisherBrokers, AFullQueueIsBackPressure) {
  MockKafka kafka;
  kafka.create_topic("t", 1);
  Driver driver({{"bootstrap.servers", kafka.bootstrap()}, {"queue.buffering.max.messages", "10"}});
  driver.submit({"t", "k", "0"});
  ASSERT_TRUE(driver.poll_until_all_done());
  kafka.delay(200ms);
  int taken = 0;
  while (driver.try_submit({"t", "k", "x"})) ++taken;
  EXPECT_EQ(taken, 10);
  EXPECT_EQ(driver.publisher().outstanding(), 10U);
  kafka.delay(0ms);
  for (int i = 0; i < 100; ++i) driver.submit({"t", "k", "y"});
  ASSERT_TRUE(driver.poll_until_all_done());
  EXPECT_EQ(driver.published(), 111U);
}

TEST(PublisherBrokers, CloseEndsSoonWhenTheBrokerIsDown) {
  MockKafka kafka;
  kafka.create_topic("t", 1);
  Driver driver({{"bootstrap.servers", kafka.bootstrap()}});
  driver.submit({"t", "k", "0"});
  ASSERT_TRUE(driver.poll_until_all_done());
  kafka.down();
  for (int i = 0; i < 1000; ++i) driver.submit({"t", "k", std::to_string(i)});
  const auto begin = Clock::now();
  driver.close(1s);
  EXPECT_LT(Clock::now() - begin, 1500ms);
  EXPECT_EQ(driver.refused(), 0U);
  EXPECT_FALSE(driver.try_submit({"t", "k", "late"}));
}

TEST(PublisherBrokers, CloseTakesTheReportsOfWhatIsOnItsWay) {
  MockKafka kafka;
  kafka.create_topic("t", 1);
  Driver driver({{"bootstrap.servers", kafka.bootstrap()}});
  driver.submit({"t", "k", "0"});
  ASSERT_TRUE(driver.poll_until_all_done());
  kafka.delay(100ms);
  // When the first report comes, the next requests are on their way already.
  while (driver.published() < 2) {
    driver.submit({"t", "k", "1"});
    driver.poll_until([&] { return driver.published() >= 2; }, 5ms);
  }
  const auto before = driver.published();
  driver.close(1s);
  EXPECT_GT(driver.published(), before);
  EXPECT_EQ(driver.refused(), 0U);
}

TEST(PublisherBrokers, NothingReadsARecordAfterThePublisherIsGone) {
  MockKafka kafka;
  kafka.create_topic("t", 1);
  const std::string large(100'000, 'x');  // above message.copy.max.bytes: librdkafka sends it from our memory
  Driver driver({{"bootstrap.servers", kafka.bootstrap()}});
  driver.submit({"t", "k", "0"});
  ASSERT_TRUE(driver.poll_until_all_done());
  kafka.delay(100ms);
  for (int i = 0; i < 50; ++i) driver.submit({"t", "k", large});
  const auto begin = Clock::now();
  driver.destroy();
  EXPECT_LT(Clock::now() - begin, 1500ms);
}

std::set<std::string> threads() {
  std::set<std::string> ids;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) ids.insert(entry.path().filename());
  return ids;
}

std::uint64_t blocked_signals(const std::string& thread) {
  std::ifstream status("/proc/self/task/" + thread + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("SigBlk:")) return std::stoull(line.substr(7), nullptr, 16);
  }
  return 0;
}

TEST(PublisherBrokers, LibraryThreadsBlockAllSignalsAndOursKeepsItsMask) {
  MockKafka kafka(3);
  kafka.create_topic("t", 3);
  const auto before = threads();
  const auto own = blocked_signals(std::to_string(::getpid()));
  Driver driver({{"bootstrap.servers", kafka.bootstrap()}});
  driver.submit({"t", "k", "x"});
  ASSERT_TRUE(driver.poll_until_all_done());
  std::size_t seen = 0;
  for (const auto& thread : threads()) {
    if (before.contains(thread)) continue;
    ++seen;
    for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGALRM, SIGCHLD, SIGQUIT}) {
      EXPECT_TRUE(blocked_signals(thread) >> (signal - 1) & 1) << "thread " << thread << " takes signal " << signal;
    }
  }
  EXPECT_GE(seen, 2U);
  EXPECT_EQ(blocked_signals(std::to_string(::getpid())), own);
}

TEST(PublisherBrokers, ABadConfigurationIsUnconfiguredWithAReasonAndTakesNothing) {
  Driver nothing({});
  EXPECT_EQ(nothing.publisher().health().state, Health::State::unconfigured);
  EXPECT_FALSE(nothing.try_submit({"t", "k", "x"}));
  Driver unknown({{"bootstrap.servers", "127.0.0.1:1"}, {"no.such.property", "x"}});
  EXPECT_NE(unknown.publisher().health().reason.find("\"no.such.property\""), std::string::npos);
  Driver breaking({{"bootstrap.servers", "127.0.0.1:1"}, {"acks", "1"}});
  EXPECT_EQ(breaking.publisher().health().state, Health::State::unconfigured);
  Driver incomplete(
      {{"bootstrap.servers", "127.0.0.1:1"}, {"security.protocol", "sasl_plaintext"}, {"sasl.mechanism", "PLAIN"}});
  EXPECT_EQ(incomplete.publisher().health().state, Health::State::unconfigured);
  EXPECT_FALSE(incomplete.publisher().health().reason.empty());
}

}  // namespace
}  // namespace outbox::publish::test
