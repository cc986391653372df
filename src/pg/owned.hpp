// C++ objects that live as long as a server memory context. C++ code.
#pragma once

#include <memory>
#include <utility>

#include "pg/error.hpp"

namespace outbox::pg {

// T's destructor must neither throw nor call the server: it runs while the context is reset.
template <class T>
T* owned_by(MemoryContext context, std::unique_ptr<T> object) {
  auto* callback = static_cast<MemoryContextCallback*>(
      call([context] { return MemoryContextAlloc(context, sizeof(MemoryContextCallback)); }));
  T* raw = object.release();
  callback->func = [](void* arg) { delete static_cast<T*>(arg); };
  callback->arg = raw;
  MemoryContextRegisterResetCallback(context, callback);
  return raw;
}

}  // namespace outbox::pg
