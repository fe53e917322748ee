# What nearly every file reads of the standard library, and fmt: a target that lists these headers for
# precompilation reads them once. A file still names what it uses.
set(LONGSPAN_PRECOMPILED
    <algorithm> <array> <atomic> <cmath> <cstdint> <cstring> <fmt/format.h> <functional>
    <initializer_list> <map> <memory> <mutex> <numeric> <optional> <set> <span> <stdexcept> <string>
    <string_view> <unordered_map> <utility> <vector>)

# ccache takes such a header for what its text says, and keeps what was compiled with it.
find_program(LONGSPAN_CCACHE ccache)
if(LONGSPAN_CCACHE)
  set(LONGSPAN_CCACHE_COMMAND
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${LONGSPAN_CCACHE})
  if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${LONGSPAN_CCACHE_COMMAND})
  endif()
endif()
