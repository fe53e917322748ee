#include "app/run_config.h"

#include <fmt/format.h>

#include <cstdio>

#include "core/parallel.h"
#include "data/io/json.h"
#include "train/config.h"

namespace longspan {

void RunConfig::visit(Fields& v) {
  constexpr Range many_or_none = range::between(0, range::many),
                  some = range::between(1, range::many);
  v("task", task)("data", data)("data_root", data_root)("split", split)("tokenizer", tokenizer);
  v("length", length, some)("batch", batch, some);
  v("accumulate", accumulate, some, "batches whose gradients are summed for one step");
  v("steps", steps, range::not_negative)("seconds", seconds, range::not_negative);
  v("seed", seed)("threads", threads)("device", device);
  v("matmul_precision", matmul_precision)("matmul_library", matmul_library);
  v("memory_limit", memory_limit, "maximum memory of tensors, as 20MiB; 0: that of the machine");
  v("graph", graph, "record the steps of one shape, and submit each to the device as a whole");
  v("check_replays", check_replays, "check that recomputed layers give the same values; slow");
  v("anomaly", anomaly, "stop at the first op of a step that gives NaN or Inf; slow");
  v("save_every", save_every, range::not_negative)("keep", keep, many_or_none);
  v("keep_best", keep_best)("best_by", best_by)("patience", patience, many_or_none);
  v("log_every", log_every, range::positive)("eval_every", eval_every, range::not_negative);
  v("eval_tokens", eval_tokens, range::not_negative)("tensorboard", tensorboard);
  v("pictures", pictures, "formats of pictures: png, svg or pdf, or several with commas");
  if (of_task) of_task->visit(v);
  v.enter("model");
  v("name", model_name);
  model->visit(v);
  v.leave();
  v("optimizer", optimizer)("schedule", schedule)("start", start)("ranks", ranks);
}

void RunConfig::follow_length() {
  if (!free_positions.empty()) {
    set_fields(*model, free_positions);
    model->extend_positions(length);
  }
  if (open_field) {
    set_fields(*model, {*open_field});
    model->settle_length(length);
  }
}

std::string RunConfig::remark_on_positions() {
  const Json now = to_json(*model);
  for (const Setting& s : free_positions) {
    if (s.key == "position_shape" || s.value == now[s.key]) continue;
    return fmt::format("model.{} = {}: positions for as many tokens as --length has", s.key,
                       now[s.key].integer());
  }
  return {};
}

std::string RunConfig::remark_on_length() {
  if (!open_field) return {};
  const Json now = to_json(*model)[open_field->key];
  if (now == open_field->value) return {};
  return fmt::format("model.{} = {}: for sequences of --length {}, and kept where it reads others",
                     open_field->key, to_string(now), length);
}

void set_process(const RunConfig& c) {
  if (c.threads > 0) set_num_threads(static_cast<int>(c.threads));
  set_matmul_precision(c.matmul_precision);
  set_matmul_library(c.matmul_library);
}

void say_positions(RunConfig& c) {
  const std::string remark = c.remark_on_positions();
  if (!remark.empty()) std::fprintf(stderr, "%s\n", remark.c_str());
}

DataPlace data_place(const RunConfig& c) { return {c.data_root, c.data}; }

std::string data_name(const RunConfig& c) { return c.data.empty() ? c.task : c.data; }

}  // namespace longspan
