#pragma once

#include <string>

#include "app/tasks/task_data.h"

namespace longspan {

/// Returns what the model writes at present, for people to look at:
///   decoders           what follows the beginning of the validation part, drawn from the model;
///                      the same draws at every step, so that differences are the model's
///   masked encoders    the beginning of the validation part with every eighth token hidden, and
///                      the model's guess at it
///   encoder-decoders   what is written about the first item of the validation part
/// Empty where tokens stand for no text, and for models of other tasks.
std::string sample_of(const TrainingRun& run, const TaskData& task_data);

/// Runs a model as sample_of() does in a run with segments of `length` tokens, for predictions of
/// memory.
void rehearse_sample(const LanguageModel& model, int64_t length);

}  // namespace longspan
