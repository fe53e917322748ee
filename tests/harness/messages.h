#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace longspan::test {

/// Runs f and returns the message of the E that it throws; fails the test if it does not throw one.
template <class E, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another type: " << error.what();
    return {};
  }
  ADD_FAILURE() << "nothing thrown";
  return {};
}

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace longspan::test
