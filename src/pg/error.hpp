// Two error worlds, one border.
//
// Server code may ereport(): the error jumps (siglongjmp) past every destructor. C++ code throws. So code here is one or
// the other:
//  - server code owns nothing that needs a destructor. It is reached through pg::call() only, or is marked `server code`
//    at the top of its file, which means that all of its callers are inside a pg::call() already.
//  - C++ code calls the server inside pg::call(lambda) and sees a server error as the empty exception ErrorInFlight; the
//    error's data stays on the server's error stack.
// The server enters C++ through pg::boundary<Fn>(), which turns ErrorInFlight and exceptions into a server error again.
#pragma once

#include <concepts>
#include <exception>
#include <new>
#include <type_traits>

#include "pg/postgres.hpp"

namespace outbox::pg {

struct ErrorInFlight {};

template <class T>
concept JumpSafe = std::is_void_v<T> || std::is_trivially_destructible_v<T>;

// The jump lands in this frame and skips the closure, so neither it nor its result may need a destructor.
template <class F>
  requires JumpSafe<std::remove_cvref_t<F>> && JumpSafe<std::invoke_result_t<F&>>
auto call(F&& body) -> std::invoke_result_t<F&> {
  sigjmp_buf here;
  sigjmp_buf* const outer_stack = PG_exception_stack;
  ErrorContextCallback* const outer_context = error_context_stack;
  if (sigsetjmp(here, 0) != 0) {
    PG_exception_stack = outer_stack;
    error_context_stack = outer_context;
    throw ErrorInFlight{};
  }
  PG_exception_stack = &here;
  struct Restore {
    sigjmp_buf* outer;
    ~Restore() { PG_exception_stack = outer; }  // also when body throws; after a jump it is already done
  } restore{outer_stack};
  return body();
}

// What a boundary does with an exception once the catch block is left: raising inside it would leak the exception.
enum class Escaped { nothing, server_error, out_of_memory, other };
[[noreturn]] void raise_escaped(Escaped what, const char* text);

template <Datum (*Fn)(FunctionCallInfo)>
Datum boundary(FunctionCallInfo fcinfo) {
  Escaped escaped = Escaped::nothing;
  char text[256] = "";
  try {
    return Fn(fcinfo);
  } catch (const ErrorInFlight&) {
    escaped = Escaped::server_error;
  } catch (const std::bad_alloc&) {
    escaped = Escaped::out_of_memory;
  } catch (const std::exception& e) {
    escaped = Escaped::other;
    strlcpy(text, e.what(), sizeof text);
  }
  raise_escaped(escaped, text);
}

// Logs the error in flight at its own level and clears it; aborts the transaction. For the main loops of our workers.
// Not `loud`: without the log, for one that was just logged.
void recover(bool loud = true);
// The message and hint of the error in flight (the detail where that names what is in the way), cut to fit, without logging or
// clearing it.
void error_message(char* buffer, size_t size, int* sqlstate);

}  // namespace outbox::pg

// Defines the C symbol `symbol` for CREATE FUNCTION … AS 'MODULE_PATHNAME', 'symbol'; the body is server code.
#define OUTBOX_SERVER_FUNCTION(symbol, fn)              \
  extern "C" {                                          \
  PGDLLEXPORT Datum symbol(PG_FUNCTION_ARGS);           \
  PG_FUNCTION_INFO_V1(symbol);                          \
  Datum symbol(PG_FUNCTION_ARGS) { return fn(fcinfo); } \
  }                                                     \
  static_assert(true)

// The same for a body in C++.
#define OUTBOX_FUNCTION(symbol, fn)                                           \
  extern "C" {                                                                \
  PGDLLEXPORT Datum symbol(PG_FUNCTION_ARGS);                                 \
  PG_FUNCTION_INFO_V1(symbol);                                                \
  Datum symbol(PG_FUNCTION_ARGS) { return outbox::pg::boundary<fn>(fcinfo); } \
  }                                                                           \
  static_assert(true)
