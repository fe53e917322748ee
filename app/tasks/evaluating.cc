#include "app/tasks/evaluating.h"

#include <algorithm>

namespace longspan {
namespace {

thread_local Evaluating* current = nullptr;

}  // namespace

Evaluating::Evaluating(int64_t tokens, Progress progress)
    : tokens_(tokens), progress_(std::move(progress)), outer_(current) {
  current = this;
}

Evaluating::~Evaluating() { current = outer_; }

int64_t Evaluating::tokens() { return current != nullptr ? current->tokens_ : 0; }

void Evaluating::see(int64_t done, int64_t all) {
  if (current != nullptr && current->progress_) current->progress_(done, all);
}

EvaluatedItems::EvaluatedItems(int64_t count, int64_t length) : count_(count), sample_(count) {
  const int64_t tokens = Evaluating::tokens();
  if (tokens == 0 || count == 0) return;
  sample_ = std::clamp<int64_t>(tokens / std::max<int64_t>(length, 1), 1, count);
}

}  // namespace longspan
