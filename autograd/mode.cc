#include "autograd/mode.h"

namespace longspan::autograd {
namespace detail {

bool& recording_flag() {
  thread_local bool flag = true;
  return flag;
}

bool& replaying_flag() {
  thread_local bool flag = false;
  return flag;
}

bool& anomaly_flag() {
  thread_local bool flag = false;
  return flag;
}

}  // namespace detail

bool recording() { return detail::recording_flag(); }
bool replaying() { return detail::replaying_flag(); }
bool anomaly_mode() { return detail::anomaly_flag(); }

}  // namespace longspan::autograd
