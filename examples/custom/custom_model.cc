// What the library does for your own op and layer: it checks gradients, saves memory and measures.
#include <iostream>

#include "custom_layer.h"

int main() try {
  const Generator gen{7};
  const GradcheckResult checked =
      gradcheck([](const std::vector<Tensor>& in) { return decay(in[0], in[1]); },
                {normal({2, 5, 3}, gen, 0, 1, DType::f64), uniform({3}, gen, 0, 1, DType::f64)});
  std::cout << "gradients of decay: " << (checked ? "right" : checked.message) << "\n";

  DecayLayer layer(8, Init{gen.fork("init")});
  const Tensor x = normal({8, 64, 8}, gen.fork("x")), target = decay(x, full({8}, 0.9)) * 0.1;
  const auto f = [&layer](const Tensor& h) { return layer.forward(h, {}, {}).y; };
  Adam adam(named_parameters(layer));
  for (int step = 0; step <= 300; ++step) {
    const Tensor loss = mse(checkpoint(f, x), target);  // saves x; backward() calls f again
    backward(loss);
    adam.step(2e-2);
    if (step % 100 == 0) std::cout << "step " << step << ", loss " << loss.item() << "\n";
  }
  std::cout << "a, near 0.9 in the channels that the output uses most: " << sigmoid(layer.rate)
            << "\n";

  std::vector<Coupling> couplings;  // y1 = x1 + f(x2), y2 = x2 + g(y1); only the last y is saved
  for (uint64_t i = 0; i < 8; i += 2) {
    couplings.push_back({std::make_unique<DecayLayer>(8, Init{gen.fork(i)}),
                         std::make_unique<DecayLayer>(8, Init{gen.fork(i + 1)})});
  }
  backward(mse(mean_of(reversible(couplings, {x, x}, {}, {}).y), target));
  std::cout << "most bytes at a time\n" << to_string(memory_tracker().peak()) << "\n";

  for (const Device device : {meta_device, Device{}}) {  // a prediction, and a measurement
    const MeasureOptions options{.base = memory_tracker(device).live()};
    DecayLayer model(512, Init{gen, device});
    Adam optimizer(named_parameters(model));
    const Tensor in = Tensor::zeros({4, 256, 512}, DType::f32, device);
    const auto loss = [&] { return mse(model.forward(in, {}, {}).y, in); };
    const StepMemory step = measure_step(device, optimizer, loss, options);
    std::cout << name_of(device) << ": a peak of " << step.peak() << " bytes\n";
  }

  try {
    const AnomalyMode on;  // names the first op with a result that is not finite
    log(layer.rate - 100);
  } catch (const ValueError& error) {
    std::cout << error.what() << "\n";
  }
  write_tensors("custom_model.safetensors", named_state(layer));
  DecayLayer again(8, Init{});
  load_tensors("custom_model.safetensors", named_state(again));
  std::cout << "difference after loading: " << again.rate - layer.rate << "\n";
} catch (const Error& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
