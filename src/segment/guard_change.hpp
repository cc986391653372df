// What an owner or a superuser may not do to the tables of the extension, unless outbox.allow_data_loss is on. Server code.
#pragma once

#include "pg/postgres.hpp"

namespace outbox::segment {

// Raises an error if a utility statement would change one of our tables so that messages are lost, are not published, or
// the log cannot roll any more.
void guard_statement(Node* statement);

}  // namespace outbox::segment
