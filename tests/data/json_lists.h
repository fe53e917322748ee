#pragma once

#include <string>
#include <vector>

#include "data/io/json.h"

namespace longspan::test {

template <class T>
std::vector<T> numbers_of(const Json& array) {
  std::vector<T> all;
  for (const Json& item : array.array()) all.push_back(static_cast<T>(item.number()));
  return all;
}

inline std::vector<std::string> texts_of(const Json& array) {
  std::vector<std::string> all;
  for (const Json& item : array.array()) all.push_back(item.string());
  return all;
}

}  // namespace longspan::test
