// What an operator reads: bounded, telling, and without a secret in it.
#include <gtest/gtest.h>

#include "../../src/publish/failure.hpp"
#include "../../src/publish/health.hpp"
#include "../../src/publish/log.hpp"
#include "kafka_fixture.hpp"

namespace outbox::publish::test {
namespace {

TEST(PublisherTexts, SecretsAreMaskedWhereverTheyAppear) {
  const Scrubber scrub(
      {{"sasl.username", "alice"}, {"sasl.password", "hunter2"}, {"ssl.key.password", "hunter2-long"}});
  EXPECT_EQ(scrub("alice:hunter2 hunter2-long!"), "alice:*** ***!");
}

TEST(PublisherTexts, ABadSecretIsNotRepeatedInTheReason) {
  Driver driver({{"bootstrap.servers", "127.0.0.1:1"}, {"security.protocol", "ssl"}, {"ssl.key.pem", "hunter2"}});
  const auto health = driver.publisher().health();
  EXPECT_EQ(health.state, Health::State::unconfigured);
  EXPECT_FALSE(health.reason.empty());
  EXPECT_EQ(health.reason.find("hunter2"), std::string::npos) << health.reason;
}

TEST(PublisherTexts, DebugOutputShowsNoPassword) {
  MockKafka kafka;
  Driver driver({{"bootstrap.servers", kafka.bootstrap()},
                 {"security.protocol", "sasl_plaintext"},
                 {"sasl.mechanism", "PLAIN"},
                 {"sasl.username", "alice"},
                 {"sasl.password", "hunter2"},
                 {"debug", "conf,security"}});
  driver.submit({"t", "k", "x"});
  std::string all;
  std::size_t lines = 0;
  driver.poll_until(
      [&] {
        for (const auto& line : driver.publisher().take_log()) {
          all += line.text + '\n';
          ++lines;
        }
        return false;
      },
      1s);
  EXPECT_GT(lines, 0U);
  EXPECT_EQ(all.find("hunter2"), std::string::npos) << all;
}

TEST(PublisherTexts, AFloodOfLogLinesIsCutAndCounted) {
  Log log;
  const auto now = Clock::now();
  for (int i = 0; i < 1000; ++i) log.add(6, "line", now);
  const auto first = log.take();
  EXPECT_LE(first.size(), 40U);
  log.add(6, "line", now + 11s);
  const auto second = log.take();
  ASSERT_EQ(second.size(), 2U);
  EXPECT_EQ(second.back().text,
            std::to_string(1000 - first.size()) + " more lines of librdkafka's log were suppressed");
}

TEST(PublisherTexts, AnErrorThatRepeatsItselfIsALineEveryFiveMinutes) {
  Log log;
  const auto now = Clock::now();
  for (int i = 0; i < 100; ++i)
    log.add(3, "a:9092: refused (after " + std::to_string(i) + "ms in state CONNECT)", now + i * 2s);
  log.add(3, "b:9092: refused (after 1ms in state CONNECT)", now + 200s);
  log.add(3, "a:9092: refused (after 1ms in state CONNECT)", now + 301s);
  std::vector<std::string> texts;
  for (const auto& line : log.take()) texts.push_back(line.text);
  EXPECT_EQ(texts, (std::vector<std::string>{"a:9092: refused (after 0ms in state CONNECT)",
                                             "b:9092: refused (after 1ms in state CONNECT)",
                                             "a:9092: refused (after 1ms in state CONNECT)"}));
}

TEST(PublisherTexts, TheLogRemembersABoundedNumberOfErrors) {
  Log log;
  const auto now = Clock::now();
  std::size_t taken = 0;
  for (int i = 0; i < 1000; ++i) {
    log.add(3, "error " + std::to_string(i), now + i * 1s);
    taken += log.take().size();
  }
  EXPECT_EQ(taken, 1000U);
  log.add(3, "error 999", now + 1000s);
  log.add(3, "error 0", now + 1000s);
  EXPECT_EQ(log.take().size(), 1U);
}

TEST(PublisherTexts, OneBrokerAwayIsAHintAndAllAwayIsTrouble) {
  HealthWatch health;
  const auto now = Clock::now();
  health.error(RD_KAFKA_RESP_ERR__TRANSPORT, "a:9092: Connection refused", now);
  EXPECT_EQ(health.get(now).state, Health::State::ok);
  health.error(RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN, "1/1 brokers are down", now);
  EXPECT_EQ(health.get(now).reason, "all brokers are down: a:9092: Connection refused");
  health.acknowledged(now);
  EXPECT_EQ(health.get(now).state, Health::State::ok);
}

TEST(PublisherTexts, ARefusedAuthenticationIsNotHiddenByAllBrokersBeingDown) {
  HealthWatch health;
  const auto now = Clock::now();
  health.error(RD_KAFKA_RESP_ERR__AUTHENTICATION, "invalid credentials", now);
  health.error(RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN, "1/1 brokers are down", now);
  EXPECT_EQ(health.get(now).reason, "Kafka does not let this client in: invalid credentials");
}

TEST(PublisherTexts, ARefusedCertificateNamesAllThatMayBeWrongWithIt) {
  const auto reason = tls_reason(
      "b:9093: SSL handshake failed: error:0A000086:SSL routines::certificate verify failed: broker certificate could "
      "not "
      "be verified, verify that ssl.ca.location is correctly configured");
  EXPECT_TRUE(
      reason.starts_with("b:9093: SSL handshake failed: error:0A000086:SSL routines::certificate verify failed: "));
  EXPECT_NE(reason.find("has expired"), std::string::npos);
  EXPECT_EQ(reason.find("verify that"), std::string::npos);
  EXPECT_EQ(tls_reason("b:9093: SSL handshake failed: wrong version number"),
            "b:9093: SSL handshake failed: wrong version number");
}

TEST(PublisherTexts, SilenceIsTroubleOnlyWhileSomethingWaits) {
  HealthWatch health;
  const auto now = Clock::now();
  EXPECT_EQ(health.get(now + 1h).state, Health::State::ok);
  health.waiting(true, now);
  EXPECT_EQ(health.silence_deadline(now), now + HealthWatch::silence_limit);
  EXPECT_EQ(health.get(now + 4s).state, Health::State::ok);
  EXPECT_EQ(health.get(now + 6s).state, Health::State::backing_off);
  health.acknowledged(now + 7s);
  EXPECT_EQ(health.get(now + 8s).state, Health::State::ok);
}

TEST(PublisherTexts, WhatABrokerMaySayIsOfTheRightKind) {
  EXPECT_EQ(classify(RD_KAFKA_RESP_ERR_NO_ERROR), Failure::none);
  EXPECT_EQ(classify(RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE), Failure::record);
  EXPECT_EQ(classify(RD_KAFKA_RESP_ERR_POLICY_VIOLATION), Failure::record);
  EXPECT_EQ(classify(RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS), Failure::broker);
  EXPECT_EQ(classify(RD_KAFKA_RESP_ERR__PURGE_INFLIGHT), Failure::purged);
  EXPECT_EQ(classify(RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED), Failure::topic);
  EXPECT_EQ(classify(RD_KAFKA_RESP_ERR__FATAL), Failure::producer);
  EXPECT_EQ(classify(RD_KAFKA_RESP_ERR__AUTHENTICATION), Failure::configuration);
}

}  // namespace
}  // namespace outbox::publish::test
