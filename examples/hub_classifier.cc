// Fine-tunes a folder of the package transformers as a classifier of texts, and writes a folder
// that the package loads. The table has columns text and label (docs/fine-tuning.md does the same
// with the program longspan).
#include <cstdio>

#include "longspan.h"

using namespace longspan;

struct Options {
  std::string from, data, out;
  int64_t batch = 8, length = 128, steps = 200;
  double lr = 5e-5;
  void visit(auto& v) {
    v("from", from)("data", data)("out", out);
    v("batch", batch)("length", length)("steps", steps)("lr", lr);
  }
};

int main(int argc, char** argv) try {
  const auto opt = parse_flags<Options>(argc, argv, "Fine-tunes a folder as a classifier.");
  const TableSource table{{opt.data}, {}, true};
  const LabelSurvey survey = survey_text_labels({&table, 1}, TextCount::one);
  const std::vector<LabelledText> texts = read_texts(table, TextCount::one, survey);
  const auto classes = std::ssize(survey.labels.names());

  const LoadedHubFolder hub = load_hub_folder(opt.from, HubTask::classes, classes);
  const auto& model = need<ClassifiesSequences>(*hub.model);
  const RowMaker rows(opt.from);
  AdamW adamw(named_parameters(*hub.model), {.weight_decay = 0});
  const Generator gen{1};
  for (int64_t step = 0; step < opt.steps; ++step) {
    std::vector<TextRow> some;
    std::vector<int32_t> labels;
    for (int64_t i = step * opt.batch; i < (step + 1) * opt.batch; ++i) {
      const LabelledText& text = texts[size_t(item_of_row(i, std::ssize(texts), 1))];
      some.push_back(rows.text(text.text, opt.length));
      labels.push_back(text.labels.at(0));
    }
    const TextBatch batch = text_batch(some, rows.padding());
    const EncoderInputs in{.tokens = batch.tokens, .lengths = batch.lengths};
    const Pass pass{.training = true, .gen = gen.fork(uint64_t(step))};
    const Tensor loss =
        cross_entropy(model.class_logits(in, pass), Tensor::from(labels, {opt.batch}));
    backward(loss);
    clip_gradients(adamw, 1);
    adamw.step(opt.lr * double(opt.steps - step) / double(opt.steps));
    if (step % 20 == 0) std::printf("step %ld loss %.4f\n", long(step), loss.item());
  }
  if (opt.out.empty()) return 0;
  const HubDescription description{.type = std::string(hub.folder.type->name),
                                   .labels = survey.labels.names(),
                                   .task = HubTask::classes,
                                   .ids = hub.folder.ids};
  const HubFolder out = hub_folder_for(hub.folder.type->model, to_json(*hub.spec), description);
  write_hub_folder(out, *hub.model, opt.out);
  write_hub_tokenizer(rows.tokenizer(), opt.out);
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
