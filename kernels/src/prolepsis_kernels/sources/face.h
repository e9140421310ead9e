// The C face of a library: each function returns what it is asked for, or 0; on failure -1, and `prolepsis_error` says why. No
// exception leaves a library. Python calls it (engine/native/library.py).
#pragma once
#include <cstdint>
#include <exception>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>

#define PROLEPSIS_EXPORT extern "C" __attribute__((visibility("default")))

#ifndef PROLEPSIS_SOURCES
#define PROLEPSIS_SOURCES "unknown"  // hash of the sources that a library was built from
#endif

namespace face {

constexpr int64_t kVersion = 3;  // raised with every change of a function or struct

inline thread_local std::string message;

// Throws where a condition does not hold; the parts make the sentence.
template <class... Parts>
inline void check(bool holds, const Parts&... parts) {
  if (holds) return;
  std::ostringstream text;
  (text << ... << parts);
  throw std::runtime_error(text.str());
}

template <class Work>
inline int64_t call(const Work& work) noexcept {
  try {
    if constexpr (std::is_void_v<decltype(work())>)
      return work(), 0;
    else if constexpr (std::is_pointer_v<decltype(work())>)
      return reinterpret_cast<int64_t>(work());
    else
      return static_cast<int64_t>(work());
  } catch (const std::exception& error) {
    message = error.what();
  } catch (...) {
    message = "a failure without a description";
  }
  return -1;
}

}  // namespace face

using face::check;

PROLEPSIS_EXPORT __attribute__((used)) inline const char* prolepsis_error() { return face::message.c_str(); }
PROLEPSIS_EXPORT __attribute__((used)) inline const char* prolepsis_sources() { return PROLEPSIS_SOURCES; }
PROLEPSIS_EXPORT __attribute__((used)) inline int64_t prolepsis_face() { return face::kVersion; }
