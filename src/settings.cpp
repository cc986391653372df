#include "settings.hpp"

#include "pg/postgres.hpp"

namespace outbox::settings {

bool enabled = true;
char* server = nullptr;
int max_message_bytes = 1'000'000;
int max_databases = 16;
int max_workers_per_database = 4;
int max_lanes = 64;
bool allow_data_loss = false;
int backlog_limit = 0;
int backlog_limit_action = warn;

namespace {

void define_reloadable() {
  DefineCustomBoolVariable("outbox.enabled", "Publishes messages to Kafka.",
                           "off: the workers of all databases are idle; messages are still enqueued.", &enabled, true,
                           PGC_SIGHUP, 0, nullptr, nullptr, nullptr);
  DefineCustomStringVariable(
      "outbox.server", "Foreign server with the settings of the Kafka cluster.",
      "Name of a foreign server of the foreign data wrapper outbox_kafka, looked up in each database.", &server,
      "kafka", PGC_SIGHUP, 0, nullptr, nullptr, nullptr);
  DefineCustomIntVariable("outbox.max_message_bytes", "Largest message that can be enqueued.",
                          "Key, payload and headers together, with 8 bytes more for each header. The topic's "
                          "max.message.bytes must allow it as well.",
                          &max_message_bytes, 1'000'000, 1'000, 256 * 1024 * 1024, PGC_SIGHUP, GUC_UNIT_BYTE, nullptr,
                          nullptr, nullptr);
  DefineCustomBoolVariable("outbox.allow_data_loss", "Allows to drop the extension while messages are unpublished.",
                           nullptr, &allow_data_loss, false, PGC_SUSET, 0, nullptr, nullptr, nullptr);
}

const config_enum_entry backlog_actions[] = {{"warn", warn, false}, {"reject", reject, false}, {nullptr, 0, false}};

void define_backlog() {
  DefineCustomIntVariable("outbox.backlog_limit", "Messages that may wait for Kafka in a database.",
                          "0: any number. What happens at the limit says outbox.backlog_limit_action.", &backlog_limit,
                          0, 0, INT_MAX - 1, PGC_SIGHUP, 0, nullptr, nullptr, nullptr);
  DefineCustomEnumVariable("outbox.backlog_limit_action", "What happens to a message beyond outbox.backlog_limit.",
                           "warn: it is enqueued, with a warning at most every 10 seconds; reject: an error.",
                           &backlog_limit_action, warn, backlog_actions, PGC_SIGHUP, 0, nullptr, nullptr, nullptr);
}

void define_at_start() {
  DefineCustomIntVariable(
      "outbox.max_databases", "Databases of this server that can use the extension at the same time.",
      "Sizes shared memory.", &max_databases, 16, 1, 1024, PGC_POSTMASTER, 0, nullptr, nullptr, nullptr);
  DefineCustomIntVariable("outbox.max_workers_per_database", "Workers that can publish for one database.",
                          "Sizes shared memory. One worker a database is started.", &max_workers_per_database, 4, 1, 64,
                          PGC_POSTMASTER, 0, nullptr, nullptr, nullptr);
  DefineCustomIntVariable("outbox.max_lanes", "Lanes a database can have.", "Sizes shared memory.", &max_lanes, 64, 1,
                          1024, PGC_POSTMASTER, 0, nullptr, nullptr, nullptr);
}

}  // namespace

void define() {
  define_reloadable();
  define_backlog();
  // Settings of the postmaster can only be defined while shared_preload_libraries are loaded.
  if (process_shared_preload_libraries_in_progress) define_at_start();
#if PG_VERSION_NUM >= 150000
  MarkGUCPrefixReserved("outbox");
#else
  EmitWarningsOnPlaceholders("outbox");
#endif
}

}  // namespace outbox::settings
