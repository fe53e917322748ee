// The program longspan with a task of one's own: are the brackets of a sequence balanced?
#include <longspan/app/program.h>
#include <longspan/longspan.h>

using namespace longspan;

struct BracketTask {
  static constexpr TargetKind kind = TargetKind::labels;
  int64_t length = 64, kinds = 2;

  void visit(auto& v) { v("kinds", kinds, range::between(1, 8), "kinds of brackets"); }
  void fit(int64_t tokens, int64_t) { length = tokens; }
  SampleShape shape() const { return {length, 1 + 2 * kinds, 1}; }  // one label for each sample
  std::string token_kind() const { return "brackets"; }
  Sample sample(const SampleKey& key) const;
};

/// Token 0 begins; 2 k + 1 opens a bracket of kind k, and 2 k + 2 closes one. In half of the
/// samples one bracket is replaced by another.
Sample BracketTask::sample(const SampleKey& key) const {
  Draws draws = draws_of("brackets", key);
  std::vector<int32_t> tokens{0}, open;
  const int64_t pairs = (length - 1) / 2;
  for (int64_t left = pairs; left > 0 || !open.empty();) {
    const bool opens = open.empty() || (left > 0 && draws.below(2) == 0);
    if (opens) open.push_back(static_cast<int32_t>(2 * draws.below(kinds) + 2)), --left;
    tokens.push_back(opens ? open.back() - 1 : open.back());
    if (!opens) open.pop_back();
  }
  const auto label = static_cast<int32_t>(draws.below(2));
  if (label == 0) {  // its partner has none then
    int32_t& wrong = tokens[static_cast<size_t>(1 + draws.below(2 * pairs))];
    wrong = static_cast<int32_t>(1 + (wrong - 1 + 1 + draws.below(2 * kinds - 1)) % (2 * kinds));
  }
  return {.tokens = tokens, .targets = {label}, .global = {0}};
}

std::unique_ptr<SampleTask> make_brackets() {
  return std::make_unique<SampleTaskOf<BracketTask>>(BracketTask{}, 256);  // 256 to validate
}

int main(int argc, char** argv) {
  return run_program(argc, argv, {},
                     {{"brackets", "brackets", "are brackets balanced?", make_brackets}});
}
