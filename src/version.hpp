// Versions of the library and of the SQL script it works with.
#pragma once

namespace outbox {

inline constexpr const char* library_version = "0.1.0";
inline constexpr const char* sql_version = "0.1";

}  // namespace outbox
