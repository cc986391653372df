// The embedded Kafka: librdkafka's mock cluster as a program, for the demo and for tests that need injected errors.
// Prints its bootstrap.servers as the first line, then answers one command a line with "ok" or "error <reason>";
// "help" lists them. It ends on "quit" or at the end of standard input, with --serve only on SIGTERM or SIGINT.
// It keeps 5 MB or 100,000 records a partition and checks no sizes, timestamps or rights.
#include <librdkafka/rdkafka.h>
// rdkafka_mock.h must come second
#include <librdkafka/rdkafka_mock.h>

#include <array>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using Words = std::vector<std::string>;

// What is wrong with a command; its text is the answer.
struct CommandError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct KafkaDeleter {
  void operator()(rd_kafka_t* kafka) const { rd_kafka_destroy(kafka); }
};
struct ClusterDeleter {
  void operator()(rd_kafka_mock_cluster_t* cluster) const { rd_kafka_mock_cluster_destroy(cluster); }
};
using Kafka = std::unique_ptr<rd_kafka_t, KafkaDeleter>;
using Cluster = std::unique_ptr<rd_kafka_mock_cluster_t, ClusterDeleter>;

constexpr std::array<std::pair<std::string_view, std::int16_t>, 9> api_keys{{{"Produce", 0},
                                                                             {"Fetch", 1},
                                                                             {"ListOffsets", 2},
                                                                             {"Metadata", 3},
                                                                             {"FindCoordinator", 10},
                                                                             {"SaslHandshake", 17},
                                                                             {"ApiVersions", 18},
                                                                             {"InitProducerId", 22},
                                                                             {"DescribeConfigs", 32}}};

int to_int(const std::string& word) {
  int value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc{} || end != word.data() + word.size()) throw CommandError("\"" + word + "\" is not a number");
  return value;
}

std::int16_t to_api_key(const std::string& word) {
  for (const auto& [name, key] : api_keys)
    if (name == word) return key;
  return static_cast<std::int16_t>(to_int(word));
}

// By librdkafka's own names: MSG_SIZE_TOO_LARGE, _TRANSPORT (drops the connection), NO_ERROR.
rd_kafka_resp_err_t to_error(const std::string& word) {
  const rd_kafka_err_desc* descriptions = nullptr;
  std::size_t count = 0;
  rd_kafka_get_err_descs(&descriptions, &count);
  for (std::size_t i = 0; i < count; ++i)
    if (descriptions[i].name != nullptr && word == descriptions[i].name) return descriptions[i].code;
  throw CommandError("\"" + word + "\" is not the name of an error");
}

int to_broker(const std::string& word) { return word == "all" || word == "none" ? -1 : to_int(word); }

void check(rd_kafka_resp_err_t error) {
  if (error != RD_KAFKA_RESP_ERR_NO_ERROR) throw CommandError(rd_kafka_err2str(error));
}

struct Options {
  int brokers = 1;
  int partitions = 3;
  bool serve = false;
  std::vector<std::pair<std::string, std::optional<int>>> topics;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--serve") {
      options.serve = true;
      continue;
    }
    if (i + 1 == argc)
      throw CommandError("usage: embedded-kafka [--brokers N] [--partitions N] [--topic NAME[:N]] [--serve]");
    const std::string value = argv[++i];
    const auto colon = value.rfind(':');
    if (name == "--brokers")
      options.brokers = to_int(value);
    else if (name == "--partitions")
      options.partitions = to_int(value);
    else if (name == "--topic" && colon == std::string::npos)
      options.topics.emplace_back(value, std::nullopt);
    else if (name == "--topic")
      options.topics.emplace_back(value.substr(0, colon), to_int(value.substr(colon + 1)));
    else
      throw CommandError("unknown option \"" + name + "\"");
  }
  return options;
}

Kafka make_client() {
  std::array<char, 512> reason{};
  rd_kafka_conf_t* conf = rd_kafka_conf_new();
  rd_kafka_conf_set(conf, "log_level", "3", nullptr, 0);
  Kafka kafka{rd_kafka_new(RD_KAFKA_PRODUCER, conf, reason.data(), reason.size())};
  if (!kafka) {
    rd_kafka_conf_destroy(conf);
    throw CommandError(reason.data());
  }
  return kafka;
}

struct Command {
  std::string_view usage;
  std::size_t least;  // words after the name
  std::size_t most;
  std::function<void(const Words&)> run;
};

void inject(rd_kafka_mock_cluster_t* cluster, const Words& words) {
  const std::int16_t api = to_api_key(words[1]);
  const rd_kafka_resp_err_t error = to_error(words[2]);
  const int count = to_int(words[3]);
  if (words.size() == 4) {
    const std::vector<rd_kafka_resp_err_t> errors(static_cast<std::size_t>(count), error);
    rd_kafka_mock_push_request_errors_array(cluster, api, errors.size(), errors.data());
    return;
  }
  const int delay = words.size() > 5 ? to_int(words[5]) : 0;
  for (int i = 0; i < count; ++i)
    check(rd_kafka_mock_broker_push_request_error_rtts(cluster, to_int(words[4]), api, 1, error, delay));
}

std::map<std::string, Command, std::less<>> make_commands(rd_kafka_mock_cluster_t* cluster, int partitions) {
  return {
      {"error",
       {"API ERROR COUNT [BROKER [MS]]: the next COUNT requests fail so", 3, 5,
        [=](const Words& w) { inject(cluster, w); }}},
      {"clear",
       {"API: forget the errors injected for all brokers", 1, 1,
        [=](const Words& w) { rd_kafka_mock_clear_request_errors(cluster, to_api_key(w[1])); }}},
      {"topic",
       {"NAME [PARTITIONS]: create it", 1, 2,
        [=](const Words& w) {
          check(rd_kafka_mock_topic_create(cluster, w[1].c_str(), w.size() > 2 ? to_int(w[2]) : partitions, 1));
        }}},
      {"topic-error",
       {"TOPIC ERROR: Metadata says so of it, NO_ERROR ends it", 2, 2,
        [=](const Words& w) { rd_kafka_mock_topic_set_error(cluster, w[1].c_str(), to_error(w[2])); }}},
      {"leader",
       {"TOPIC PARTITION BROKER|none", 3, 3,
        [=](const Words& w) {
          check(rd_kafka_mock_partition_set_leader(cluster, w[1].c_str(), to_int(w[2]), to_broker(w[3])));
        }}},
      {"down",
       {"BROKER|all: drop connections and refuse new ones", 1, 1,
        [=](const Words& w) { check(rd_kafka_mock_broker_set_down(cluster, to_broker(w[1]))); }}},
      {"up",
       {"BROKER|all", 1, 1, [=](const Words& w) { check(rd_kafka_mock_broker_set_up(cluster, to_broker(w[1]))); }}},
      {"delay",
       {"BROKER|all MS: every answer takes so long", 2, 2,
        [=](const Words& w) { check(rd_kafka_mock_broker_set_rtt(cluster, to_broker(w[1]), to_int(w[2]))); }}},
  };
}

void answer(const std::map<std::string, Command, std::less<>>& commands, const Words& words) {
  const auto command = commands.find(words[0]);
  if (command == commands.end()) throw CommandError("unknown command \"" + words[0] + "\"");
  const auto& [usage, least, most, run] = command->second;
  const std::size_t given = words.size() - 1;
  if (given < least || given > most) throw CommandError("usage: " + words[0] + " " + std::string(usage));
  run(words);
}

void read_commands(const std::map<std::string, Command, std::less<>>& commands) {
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream stream(line);
    const Words words(std::istream_iterator<std::string>(stream), {});
    if (words.empty()) continue;
    if (words[0] == "quit") return;
    if (words[0] == "help") {
      for (const auto& [name, command] : commands) std::cout << name << ' ' << command.usage << '\n';
      std::cout << "ok" << std::endl;
      continue;
    }
    try {
      answer(commands, words);
      std::cout << "ok" << std::endl;
    } catch (const CommandError& error) {
      std::cout << "error " << error.what() << std::endl;
    }
  }
}

void serve(int argc, char** argv) {
  const Options options = parse(argc, argv);
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigaddset(&stop, SIGINT);
  // before the first thread: the mock cluster's thread inherits the mask, so sigwait below gets the signal
  if (options.serve) pthread_sigmask(SIG_BLOCK, &stop, nullptr);

  const Kafka kafka = make_client();
  const Cluster cluster{rd_kafka_mock_cluster_new(kafka.get(), options.brokers)};
  if (!cluster) throw CommandError("no mock cluster of " + std::to_string(options.brokers) + " brokers");
  for (const auto& [topic, partitions] : options.topics)
    check(rd_kafka_mock_topic_create(cluster.get(), topic.c_str(), partitions.value_or(options.partitions), 1));

  std::cout << rd_kafka_mock_cluster_bootstraps(cluster.get()) << std::endl;
  if (int signal = 0; options.serve)
    sigwait(&stop, &signal);
  else
    read_commands(make_commands(cluster.get(), options.partitions));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    serve(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "embedded-kafka: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
