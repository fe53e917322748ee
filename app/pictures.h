#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/tasks/task_data.h"

namespace longspan {

/// A picture with a panel of `rows` x `columns` cells for each layer and head: layers from top to
/// bottom, heads side by side, with gaps between them. Unset cells have the background colour.
class PanelPicture {
 public:
  PanelPicture(int64_t first_layer, int64_t layers, int64_t heads, int64_t rows, int64_t columns);

  /// Sets the value, 0 to 1, of a cell. `layer` and `head` are relative to the first one drawn.
  void set(int64_t layer, int64_t head, int64_t row, int64_t column, double share);

  struct Text {
    std::string title, x_label, y_label, value_label;
  };
  /// Writes a picture in the formats that the ends of the paths name (write_line_plot()). Values
  /// are raised to `exponent` to get the colour; for `dark_high` see HeatMap. Throws IoError.
  void write(const std::vector<std::string>& paths, const Text& text, double exponent,
             bool dark_high = false) const;

 private:
  int64_t begin(int64_t panel, int64_t size) const { return panel * (size + gap_); }

  int64_t first_layer_, layers_, heads_, rows_, columns_, gap_;
  std::vector<double> values_;
};

/// Draws all pictures of a run below that it has. Returns what each shows, with its file. Throws
/// IoError.
std::vector<std::string> draw_run(const TrainingRun& run, const TaskData& task_data,
                                  const LossUnit& unit);
// Pictures have the formats of RunConfig::pictures, here called by the names of PNG.

/// Draws "pictures/loss.png": training and validation loss over steps, from metrics.jsonl.
void draw_loss(const TrainingRun& run, const LossUnit& unit);
/// Draws "pictures/attention.png": the attention probabilities of each layer and head over the
/// first tokens of the validation split, all on one scale. For an encoder-decoder it shows the
/// encoder; "pictures/attention_decoder.png" and "pictures/attention_cross.png" show how the
/// decoder attends to itself and to the source. Returns false, and draws nothing, if the model has
/// no attention map or the split no tokens.
bool draw_attention(const TrainingRun& run, const TaskData& task_data);
/// Returns a line for each layer of a decoder or encoder that says which share of the visible keys
/// of each head has a probability above 0, at the beginning of the validation split; nothing if
/// that is all of them, as with softmax, or if the model has no attention map.
std::vector<std::string> used_keys(const TrainingRun& run, const TaskData& task_data);
/// Returns what the model reports about the first tokens of the validation split.
std::vector<std::string> reported(const TrainingRun& run, const TaskData& task_data);
/// Draws "pictures/spans.png": how many tokens back each head of each layer sees, a mean over the
/// first tokens of the validation split; and, if that differs from token to token,
/// "pictures/spans_along_text.png" for each of them. Returns false, and draws nothing, unless the
/// model learns spans and the split has tokens.
bool draw_spans(const TrainingRun& run, const TaskData& task_data);
/// Draws "pictures/lifetimes.png": a histogram, for each layer and kind of token, of how many steps
/// the first tokens of the validation split are remembered. Bytes are letters, digits, spaces, line
/// breaks, markup (one of <>[]{}|=&#*/) and others; other tokens are the most frequent ones, each
/// by itself, and all others. Returns false, and draws nothing, unless the model learns that and
/// the split has tokens.
bool draw_lifetimes(const TrainingRun& run, const TaskData& task_data);
/// Runs a model as draw_attention(), draw_spans() and draw_lifetimes() do in a run with segments of
/// `length` tokens, and draws nothing: for predictions of memory.
void rehearse_pictures(const LanguageModel& model, int64_t length);
/// Draws "pictures/living.png": the memories that the next token sees, a mean over layers and
/// samples, over steps, from metrics.jsonl. Returns false, and draws nothing, if it has none.
bool draw_living(const TrainingRun& run);

}  // namespace longspan
