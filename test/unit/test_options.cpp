// Which librdkafka property may stand where.
#include <gtest/gtest.h>
#include <librdkafka/rdkafka.h>

#include <cstdlib>

#include "../../src/publish/options.hpp"

namespace outbox::publish::test {
namespace {

using Kind = Verdict::Kind;

struct Case {
  std::string name;
  std::string value;
  Place place;
  bool superuser;
  Kind kind;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name << '=' << c.value << (c.place == Place::server ? " on the server" : " in a user mapping")
       << (c.superuser ? " by a superuser" : "");
}

class Options : public testing::TestWithParam<Case> {};

TEST_P(Options, AreAllowedOrRefusedAsTheTableSays) {
  const auto& c = GetParam();
  const auto verdict = check_option(c.name, c.value, c.place, c.superuser);
  EXPECT_EQ(verdict.kind, c.kind) << verdict.message;
  EXPECT_EQ(verdict.message.empty(), c.kind == Kind::ok);
  if (c.kind == Kind::ok) return;
  EXPECT_NE(verdict.message.find('"' + c.name + '"'), std::string::npos) << verdict.message;
}

constexpr auto server = Place::server;
constexpr auto mapping = Place::user_mapping;

INSTANTIATE_TEST_SUITE_P(Server, Options,
                         testing::Values(Case{"bootstrap.servers", "a:9092,b:9092", server, false, Kind::ok},
                                         Case{"security.protocol", "sasl_ssl", server, false, Kind::ok},
                                         Case{"sasl.mechanism", "SCRAM-SHA-256", server, false, Kind::ok},
                                         Case{"sasl.username", "alice", server, false, Kind::ok},
                                         Case{"linger.ms", "5", server, false, Kind::ok},
                                         Case{"compression.type", "lz4", server, false, Kind::ok},
                                         Case{"ssl.ca.pem", "x", server, false, Kind::ok},
                                         Case{"max.in.flight", "5", server, false, Kind::ok},
                                         Case{"no.such.property", "x", server, true, Kind::unknown},
                                         Case{"linger.ms", "soon", server, true, Kind::bad_value},
                                         Case{"linger.ms", "99999999", server, true, Kind::bad_value},
                                         Case{"compression.type", "rar", server, true, Kind::bad_value},
                                         Case{"security.protocol", "telepathy", server, true, Kind::bad_value},
                                         Case{"sasl.password", "hunter2", server, true, Kind::secret},
                                         Case{"ssl.key.pem", "x", server, true, Kind::secret},
                                         Case{"ssl.key.password", "x", server, true, Kind::secret},
                                         Case{"ssl.keystore.password", "x", server, true, Kind::secret},
                                         Case{"sasl.oauthbearer.config", "x", server, true, Kind::secret},
                                         Case{"sasl.oauthbearer.client.secret", "x", server, true, Kind::secret},
                                         Case{"some.future.password", "x", server, true, Kind::secret}));

INSTANTIATE_TEST_SUITE_P(Guarantees, Options,
                         testing::Values(Case{"acks", "1", server, true, Kind::guarantee},
                                         Case{"request.required.acks", "0", server, true, Kind::guarantee},
                                         Case{"enable.idempotence", "false", server, true, Kind::guarantee},
                                         Case{"enable.gapless.guarantee", "true", server, true, Kind::guarantee},
                                         Case{"partitioner", "random", server, true, Kind::guarantee},
                                         Case{"message.timeout.ms", "1000", server, true, Kind::guarantee},
                                         Case{"delivery.timeout.ms", "1000", server, true, Kind::guarantee},
                                         Case{"retries", "0", server, true, Kind::guarantee},
                                         Case{"message.send.max.retries", "0", server, true, Kind::guarantee},
                                         Case{"transactional.id", "x", server, true, Kind::guarantee},
                                         Case{"max.in.flight", "6", server, true, Kind::guarantee},
                                         Case{"max.in.flight.requests.per.connection", "100", server, true,
                                              Kind::guarantee},
                                         Case{"message.max.bytes", "100000", server, true, Kind::guarantee},
                                         Case{"queue.buffering.max.messages", "0", server, true, Kind::guarantee},
                                         Case{"queuing.strategy", "lifo", server, true, Kind::guarantee},
                                         Case{"delivery.report.only.error", "true", server, true, Kind::guarantee},
                                         Case{"log.queue", "false", server, true, Kind::guarantee},
                                         Case{"log_cb", "x", server, true, Kind::guarantee},
                                         Case{"dr_msg_cb", "x", server, true, Kind::guarantee},
                                         Case{"internal.termination.signal", "15", server, true, Kind::guarantee},
                                         Case{"test.mock.num.brokers", "1", server, true, Kind::guarantee},
                                         Case{"group.id", "x", server, true, Kind::guarantee},
                                         Case{"fetch.min.bytes", "1", server, true, Kind::guarantee},
                                         Case{"acks", "all", mapping, true, Kind::guarantee}));

INSTANTIATE_TEST_SUITE_P(Superuser, Options,
                         testing::Values(Case{"ssl.ca.location", "/etc/ssl/ca.pem", server, false,
                                              Kind::superuser_only},
                                         Case{"ssl.ca.location", "/etc/ssl/ca.pem", server, true, Kind::ok},
                                         Case{"ssl.keystore.location", "/x", server, false, Kind::superuser_only},
                                         Case{"ssl.key.location", "/x", mapping, false, Kind::superuser_only},
                                         Case{"ssl.key.location", "/x", mapping, true, Kind::ok},
                                         Case{"plugin.library.paths", "x.so", server, false, Kind::superuser_only},
                                         Case{"sasl.kerberos.kinit.cmd", "rm", server, false, Kind::superuser_only},
                                         Case{"sasl.kerberos.principal", "$(rm)", server, false, Kind::superuser_only},
                                         Case{"sasl.mechanism", "GSSAPI", server, false, Kind::superuser_only},
                                         Case{"ssl.engine.location", "x.so", server, false, Kind::superuser_only}));

INSTANTIATE_TEST_SUITE_P(UserMapping, Options,
                         testing::Values(Case{"sasl.username", "alice", mapping, false, Kind::ok},
                                         Case{"sasl.password", "hunter2", mapping, false, Kind::ok},
                                         Case{"ssl.key.password", "hunter2", mapping, false, Kind::ok},
                                         Case{"ssl.keystore.password", "x", mapping, false, Kind::ok},
                                         Case{"bootstrap.servers", "evil:9092", mapping, true, Kind::wrong_place},
                                         Case{"security.protocol", "plaintext", mapping, true, Kind::wrong_place},
                                         Case{"no.such.property", "x", mapping, true, Kind::wrong_place}));

TEST(OptionTexts, NeverRepeatAValueThatMayBeSecret) {
  for (const auto* name : {"sasl.password", "ssl.key.pem", "sasl.oauthbearer.config", "ssl.keystore.password"}) {
    for (const auto place : {Place::server, Place::user_mapping}) {
      const auto verdict = check_option(name, "hunter2-and-more", place, false);
      EXPECT_EQ((verdict.message + verdict.hint).find("hunter2"), std::string::npos) << verdict.message;
    }
  }
}

TEST(OptionTexts, TheLibraryIsTheOneThatThisRunIsMeantFor) {
  const char* expected = std::getenv("OUTBOX_TEST_LIBRDKAFKA");
  if (expected != nullptr)
    EXPECT_EQ(library_version(), expected);
  else
    EXPECT_EQ(rd_kafka_version(), RD_KAFKA_VERSION);
}

TEST(OptionTexts, AScramMechanismIsWarnedOfWhereTheLibraryCannotDoIt) {
  EXPECT_EQ(scram_warning("PLAIN"), std::nullopt);
  constexpr int mended = 0x020601ff;
  EXPECT_EQ(scram_warning("SCRAM-SHA-256").has_value(), rd_kafka_version() < mended);
}

}  // namespace
}  // namespace outbox::publish::test
