#include "train/parameter_groups.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "autograd/node.h"
#include "core/error.h"
#include "nn/nearest.h"

namespace longspan {
namespace {

constexpr const char* kOptimizer = "optimizer";

/// Throws ValueError if no parameter has the name that a pattern says.
void require_matched(const TensorList& parameters, const std::string& pattern, const char* key) {
  std::vector<std::string> names;
  for (const NamedTensor& p : parameters) {
    if (matches(p.name, pattern)) return;
    names.push_back(p.name);
  }
  const std::string near = nearest(pattern, names);
  std::vector<std::string> parts;  // by the first part of their names
  for (const std::string& name : names) {
    const std::string part = name.substr(0, name.find('.')) + ".*";
    if (std::find(parts.begin(), parts.end(), part) == parts.end()) parts.push_back(part);
  }
  fail(key, "no parameter is called {}; {}there are {}, such as {}; * stands for any characters",
       pattern, near.empty() ? "" : fmt::format("did you mean {}? ", near), fmt::join(parts, ", "),
       names.empty() ? "" : names[names.size() / 2]);
}

bool any_matches(std::string_view name, const std::vector<std::string>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return matches(name, pattern); });
}

/// A pattern and the factor of its parameters.
struct Rate {
  std::string pattern;
  double factor;
};

Rate rate_of(const std::string& text) {
  const size_t at = text.rfind('=');
  double factor = -1;
  if (at != std::string::npos) {
    const char* const end = text.data() + text.size();
    const auto [last, error] = std::from_chars(text.data() + at + 1, end, factor);
    if (error != std::errc() || last != end) factor = -1;
  }
  require(factor >= 0 && std::isfinite(factor) && at > 0, "optimizer.rates",
          "got {}; expected NAMES=FACTOR, a number of 0 or more", text);
  return {text.substr(0, at), factor};
}

/// An empty list on the command line is one empty name.
std::vector<std::string> without_empty(std::vector<std::string> names) {
  std::erase(names, "");
  return names;
}

}  // namespace

bool matches(std::string_view name, std::string_view pattern) {
  size_t at = 0, p = 0, star = std::string_view::npos, resume = 0;
  while (at < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = at;
    } else if (p < pattern.size() && pattern[p] == name[at]) {
      ++p;
      ++at;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      at = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::vector<ParameterGroup> parameter_groups(const TensorList& parameters, ParameterChoice choice,
                                             bool matrices_only) {
  choice.train = without_empty(std::move(choice.train));
  choice.freeze = without_empty(std::move(choice.freeze));
  choice.rates = without_empty(std::move(choice.rates));
  for (const std::string& pattern : choice.train) {
    require_matched(parameters, pattern, "optimizer.train");
  }
  for (const std::string& pattern : choice.freeze) {
    require_matched(parameters, pattern, "optimizer.freeze");
  }
  std::vector<Rate> rates;
  for (const std::string& text : choice.rates) {
    rates.push_back(rate_of(text));
    require_matched(parameters, rates.back().pattern, "optimizer.rates");
  }
  if (choice.train.empty() && choice.freeze.empty() && choice.rates.empty()) {
    return matrices_only ? decay_matrices(parameters) : one_group(parameters);
  }
  std::vector<ParameterGroup> groups;
  for (const NamedTensor& p : parameters) {
    const bool trains = (choice.train.empty() || any_matches(p.name, choice.train)) &&
                        !any_matches(p.name, choice.freeze);
    if (!trains) {
      Tensor frozen = p.tensor;
      set_requires_grad(frozen, false);
      continue;
    }
    double factor = 1;
    for (const Rate& rate : rates) {
      if (matches(p.name, rate.pattern)) factor = rate.factor;
    }
    const bool decays = !matrices_only || p.tensor.rank() >= 2;
    auto group = std::find_if(groups.begin(), groups.end(), [&](const ParameterGroup& g) {
      return g.lr_scale == factor && g.weight_decay == decays;
    });
    if (group == groups.end()) {
      groups.push_back({{}, factor, decays});
      group = groups.end() - 1;
    }
    group->parameters.push_back(p);
  }
  require(!groups.empty(), kOptimizer, "all {} parameters are frozen; expected one to train",
          parameters.size());
  return groups;
}

}  // namespace longspan
