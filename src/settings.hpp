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

void define();

}  // namespace outbox::settings
