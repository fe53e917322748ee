#pragma once

#include <initializer_list>

#include "data/sample_task.h"
#include "models/model_spec.h"
#include "train/log.h"

namespace longspan {

/// Runs the command that argv[1] names (train, eval, generate, models, tasks, data, tokens, draw,
/// memory or study; see docs/options.md) for the models and tasks of the library and those given,
/// and returns the exit status of the process. A program's main needs only this call; link it with
/// longspan::app.
///   models  those that register_model() (models/all/registry.h) adds first
///   tasks   those that --task knows besides; their texts must live as long as the process
///   on_row  is told what `train` logs, e.g. to show it elsewhere; may be empty
/// Throws nothing: errors are printed.
int run_program(int argc, char** argv, std::initializer_list<ModelEntry> models = {},
                std::initializer_list<SampleTaskEntry> tasks = {}, OnRow on_row = {});

}  // namespace longspan
