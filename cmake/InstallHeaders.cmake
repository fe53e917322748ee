# Installs the public headers below include/longspan, as <longspan/core/tensor.h>. In the repository they
# include each other by their path from the root, "core/tensor.h". An installed copy must not need
# include/longspan itself on the include path, where core/, data/ or train/ could hide folders of the
# user's project or be hidden by them, so its headers include each other as <longspan/core/tensor.h>.
# Of app/, which holds a program, only program.h is public; the backends have no public headers.
cmake_policy(SET CMP0009 NEW)
file(REMOVE_RECURSE "${LONGSPAN_STAGED_DIR}")
file(GLOB_RECURSE headers RELATIVE "${LONGSPAN_SOURCE_DIR}"
  "${LONGSPAN_SOURCE_DIR}/core/*.h" "${LONGSPAN_SOURCE_DIR}/autograd/*.h" "${LONGSPAN_SOURCE_DIR}/ops/*.h"
  "${LONGSPAN_SOURCE_DIR}/nn/*.h" "${LONGSPAN_SOURCE_DIR}/models/*.h" "${LONGSPAN_SOURCE_DIR}/data/*.h"
  "${LONGSPAN_SOURCE_DIR}/train/*.h")
foreach(header IN LISTS headers ITEMS app/program.h longspan.h)
  file(READ "${LONGSPAN_SOURCE_DIR}/${header}" text)
  string(REGEX REPLACE "\n([ \t]*#[ \t]*include[ \t]*)\"([^\"\n]+)\"" "\n\\1<longspan/\\2>" text "${text}")
  file(WRITE "${LONGSPAN_STAGED_DIR}/${header}" "${text}")
endforeach()
file(INSTALL "${LONGSPAN_STAGED_DIR}/" DESTINATION "${CMAKE_INSTALL_PREFIX}/${LONGSPAN_INCLUDE_DIR}")
