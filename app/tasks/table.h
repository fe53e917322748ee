#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "app/tasks/task.h"
#include "data/sample_task.h"

namespace longspan {

/// A row of the table of tasks.
struct TaskEntry {
  DataSet set;  ///< its name, what it is about, and its files, if there are any
  std::function<std::unique_ptr<Task>(const DataSet&)> make;
};

/// Returns all tasks in listing order: one for each data set, the generated ones, and those of
/// register_task(). The span is valid until the next call of register_task().
std::span<const TaskEntry> tasks();

/// Adds a generated task of one's own, which --task then knows by its name. The texts of the entry
/// must live as long as the process. Call it before threads start. Throws ValueError if the name is
/// empty or taken, or if the section is the name of another key.
void register_task(const SampleTaskEntry& entry);

/// Returns the row of that name. Throws ValueError that names the most similar one.
const TaskEntry& find_task(const std::string& id);

/// Returns the task of that name with its usual options. Throws as find_task().
std::unique_ptr<Task> make_task(const std::string& id);

/// Returns the name of the first task that suits a model, `id` if that one does: what is planned or
/// drawn for a model whose user has not said what it is for.
std::string task_for(const LanguageModel& model, const std::string& id);

}  // namespace longspan
