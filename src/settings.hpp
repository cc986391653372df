// Every outbox.* setting in one place.
#pragma once

namespace outbox::settings {

extern bool enabled;
extern char* server;
extern int max_message_bytes;
extern int max_databases;
extern int max_workers_per_database;
extern int max_lanes;
extern bool allow_data_loss;
extern int workers_per_database;
extern int segment_max_age;   // s
extern int segment_max_size;  // kB
extern int retention;         // s; -1: for ever

enum ArchiveMode : int { archive_keep, archive_detach, archive_function };
extern int archive_mode;

// Messages that may wait for Kafka in a database; 0: any number.
extern int backlog_limit;
enum BacklogAction : int { warn, reject };
extern int backlog_limit_action;

void define();

}  // namespace outbox::settings
