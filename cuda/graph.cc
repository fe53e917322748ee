#include "core/graph.h"

#include "cuda/register.h"
#include "cuda/runtime.h"

namespace longspan::cuda {

void register_graph() {
  // Relaxed mode: meanwhile the pool may back more of its address range, which submits no work.
  begin_recording.set(DeviceKind::cuda, [] {
    check(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeRelaxed), "begin_recording");
  });
  end_recording.set(DeviceKind::cuda, [](void** recorded) {
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream(), &graph), "end_recording");
    cudaGraphExec_t runnable = nullptr;
    const cudaError_t status = cudaGraphInstantiate(&runnable, graph, 0);
    cudaGraphDestroy(graph);
    check(status, "end_recording");
    *recorded = runnable;
  });
  abandon_recording.set(DeviceKind::cuda, [] {
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(stream(), &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();  // clears the error of a broken recording
  });
  replay_recording.set(DeviceKind::cuda, [](void* recorded) {
    check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(recorded), stream()), "replay_recording");
  });
  // The driver frees a recording that is still running once it has finished.
  drop_recording.set(DeviceKind::cuda, [](void* recorded) {
    cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(recorded));
  });
}

}  // namespace longspan::cuda
