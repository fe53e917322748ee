// A program outside the repository. Without arguments it uses the library; with some it is the
// program longspan with a model whose configuration has none of the fields that programs look for.
#include <longspan/app/program.h>
#include <longspan/core/tensor.h>
#include <longspan/models/all/registry.h>

#include <cstdio>
#include <cstring>
#include <vector>

namespace {

struct Bare : longspan::ModelSpec {
  void visit(longspan::Fields&) override {}
  longspan::TrainingDefaults defaults() const override { return {.length = 12, .batch = 2}; }
  std::string_view extend_positions(int64_t) override { return {}; }

 private:
  std::unique_ptr<longspan::LanguageModel> make(const longspan::Init& init) const override {
    return longspan::find_model("transformer:tiny")->build(init);
  }
};

constexpr longspan::Preset presets[] = {{"small", "a model without fields"}};
std::unique_ptr<longspan::ModelSpec> make(std::string_view) { return std::make_unique<Bare>(); }

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) {
    const bool twice = std::strcmp(argv[1], "twice") == 0;
    return longspan::run_program(argc, argv, {{twice ? "etc" : "bare", "bare", presets, make}});
  }
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const longspan::Tensor x = longspan::Tensor::from(values, {2, 3});
  const std::vector<float> back = x.to_vector<float>();
  std::printf("%s\n", longspan::describe("x", x).c_str());
  return back == values && x.dim(-1) == 3 ? 0 : 1;
}
