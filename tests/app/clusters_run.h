#pragma once

#include <string>
#include <utility>

#include "app/run.h"
#include "app/tasks/samples.h"
#include "app/tasks/table.h"
#include "tests/app/stepped_run.h"
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

}  // namespace longspan::test
