// Statements that drop the extension, directly or through what it depends on. Server code.
#pragma once

#include "pg/postgres.hpp"

namespace outbox::segment {

// For a session in a database that has the extension.
bool drops_extension(Node* statement);
bool may_drop_extension();

}  // namespace outbox::segment
