// Which librdkafka properties an operator may set, where, and who. Used when CREATE SERVER and CREATE USER MAPPING are
// checked and when the producer is configured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace outbox::publish {

enum class Place : std::uint8_t { server, user_mapping };

struct Verdict {
  enum class Kind : std::uint8_t {
    ok,
    unknown,         // this librdkafka does not know the name: a warning (a dump must restore with another version)
    bad_value,       // librdkafka refuses the value
    secret,          // a secret where everyone can read it
    guarantee,       // would break a guarantee of ours
    superuser_only,  // reads files or runs code: needs a superuser
    wrong_place      // not for a user mapping (bootstrap.servers there would redirect somebody's secrets)
  };
  Kind kind = Kind::ok;
  std::string message;  // one sentence, lower case start, name in quotes, never a value that may be secret
  std::string hint;
};

// `superuser`: the one who sets it (or the owner) is a superuser.
Verdict check_option(std::string_view name, std::string_view value, Place place, bool superuser);

bool is_secret(std::string_view name);

// The value is the path of a file that librdkafka reads when it starts: a certificate, a key.
bool names_file(std::string_view name);

// "2.0.2", as librdkafka says at run time.
std::string library_version();

// nullopt, or a plain sentence why this librdkafka cannot authenticate with these settings to a Kafka 4 broker
// (SCRAM before 2.6.1 repeats the client nonce).
std::optional<std::string> scram_warning(std::string_view mechanism);

}  // namespace outbox::publish
