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

// Messages that may wait for Kafka in a database; 0: any number.
extern int backlog_limit;
enum BacklogAction : int { warn, reject };
extern int backlog_limit_action;

void define();

}  // namespace outbox::settings
