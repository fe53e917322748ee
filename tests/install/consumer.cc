#include <longspan/core/tensor.h>

#include <cstdio>
#include <vector>

int main() {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const longspan::Tensor x = longspan::Tensor::from(values, {2, 3});
  const std::vector<float> back = x.to_vector<float>();
  std::printf("%s\n", longspan::describe("x", x).c_str());
  return back == values && x.dim(-1) == 3 ? 0 : 1;
}
