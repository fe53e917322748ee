#pragma once

#include <string>
#include <utility>

#include "app/run.h"
#include "app/tasks/samples.h"
#include "app/tasks/table.h"
#include "app/training.h"
#include "tests/harness/clusters.h"

namespace longspan::test {

/// Returns the configuration of a run of ClusterModel on a generated task.
inline RunConfig clusters_config(const ClusterConfig& model = {}) {
  RunConfig c;
  c.task = "duplicate";
  c.of_task = make_task(c.task);
  c.model_name = "clusters";
  c.model = cluster_spec(model);
  c.length = 12;
  c.batch = 4;
  c.accumulate = 2;
  c.steps = 6;
  c.log_every = 1;
  dynamic_cast<GeneratedTask&>(*c.of_task).samples().held_out = 8;
  c.optimizer.clip = 0.05;
  return c;
}

/// Runs `longspan train` into a folder, from a checkpoint in it if one is given.
inline void train_clusters(RunConfig config, const std::string& out,
                           const std::string& checkpoint = {}) {
  Beginning from{
      .out = out, .checkpoint = checkpoint, .newest = checkpoint, .resume = !checkpoint.empty()};
  Prepared prepared(std::move(from), {.config = std::move(config)});
  Training(prepared).run();
}

}  // namespace longspan::test
