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
int workers_per_database = 1;
int segment_max_age = 24 * 60 * 60;
int segment_max_size = 1024 * 1024;
int retention = 7 * 24 * 60 * 60;
int archive_mode = archive_keep;

namespace {

const config_enum_entry archive_modes[] = {{"keep", archive_keep, false},
                                           {"detach", archive_detach, false},
                                           {"function", archive_function, false},
                                           {nullptr, 0, false}};

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
  DefineCustomBoolVariable("outbox.allow_data_loss",
                           "Allows to drop the extension while messages are unpublished, and to change its tables.",
                           nullptr, &allow_data_loss, false, PGC_SUSET, 0, nullptr, nullptr, nullptr);
  DefineCustomIntVariable("outbox.workers_per_database", "Workers that publish for each database.",
                          "They share the database's lanes. No more than outbox.max_workers_per_database are started.",
                          &workers_per_database, 1, 1, 64, PGC_SIGHUP, 0, nullptr, nullptr, nullptr);
}

void define_life_of_segments() {
  constexpr int for_years = 2'000'000'000;
  DefineCustomIntVariable("outbox.segment_max_age", "Age at which a segment of the message log is closed.",
                          "A segment without messages stays open.", &segment_max_age, segment_max_age, 1, for_years,
                          PGC_SIGHUP, GUC_UNIT_S, nullptr, nullptr, nullptr);
  DefineCustomIntVariable("outbox.segment_max_size", "Size at which a segment of the message log is closed.",
                          "Its messages with indexes and TOAST.", &segment_max_size, segment_max_size, 64, for_years,
                          PGC_SIGHUP, GUC_UNIT_KB, nullptr, nullptr, nullptr);
  DefineCustomIntVariable("outbox.retention", "How long a segment is kept after everything in it was published.",
                          "0: not at all. -1: for ever.", &retention, retention, -1, for_years, PGC_SIGHUP, GUC_UNIT_S,
                          nullptr, nullptr, nullptr);
  DefineCustomEnumVariable("outbox.archive_mode", "What becomes of segments in which everything is published.",
                           "keep: they stay and are dropped after outbox.retention. detach: they are moved to the "
                           "schema outbox_archive then. function: outbox.set_archive_function() names a function that "
                           "must have taken them before they are dropped.",
                           &archive_mode, archive_keep, archive_modes, PGC_SIGHUP, 0, nullptr, nullptr, nullptr);
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
                          "Sizes shared memory, and limits outbox.workers_per_database.", &max_workers_per_database, 4,
                          1, 64, PGC_POSTMASTER, 0, nullptr, nullptr, nullptr);
  DefineCustomIntVariable("outbox.max_lanes", "Lanes a database can have.", "Sizes shared memory.", &max_lanes, 64, 1,
                          1024, PGC_POSTMASTER, 0, nullptr, nullptr, nullptr);
}

}  // namespace

void define() {
  define_reloadable();
  define_backlog();
  define_life_of_segments();
  // Settings of the postmaster can only be defined while shared_preload_libraries are loaded.
  if (process_shared_preload_libraries_in_progress) define_at_start();
#if PG_VERSION_NUM >= 150000
  MarkGUCPrefixReserved("outbox");
#else
  EmitWarningsOnPlaceholders("outbox");
#endif
}

}  // namespace outbox::settings
