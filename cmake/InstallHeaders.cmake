# Installs the public headers below include/longspan, as <longspan/core/tensor.h>. In the repository they
# include each other by their path from the root, "core/tensor.h". An installed copy must not need
# include/longspan itself on the include path, where core/, data/ or train/ could hide folders of the
# user's project or be hidden by them, so its headers include each other as <longspan/core/tensor.h>.
cmake_policy(PUSH)
cmake_policy(SET CMP0009 NEW)
file(REMOVE_RECURSE "${LONGSPAN_STAGED_DIR}")
list(TRANSFORM LONGSPAN_PUBLIC_FOLDERS REPLACE ".+" "${LONGSPAN_SOURCE_DIR}/\\0/*.h")
file(GLOB_RECURSE headers RELATIVE "${LONGSPAN_SOURCE_DIR}" ${LONGSPAN_PUBLIC_FOLDERS})
foreach(header IN LISTS headers LONGSPAN_PUBLIC_HEADERS)
  file(READ "${LONGSPAN_SOURCE_DIR}/${header}" text)
  string(REGEX REPLACE "\n([ \t]*#[ \t]*include[ \t]*)\"([^\"\n]+)\"" "\n\\1<longspan/\\2>" text "${text}")
  file(WRITE "${LONGSPAN_STAGED_DIR}/${header}" "${text}")
endforeach()
file(INSTALL "${LONGSPAN_STAGED_DIR}/" DESTINATION "${CMAKE_INSTALL_PREFIX}/${LONGSPAN_INCLUDE_DIR}")
cmake_policy(POP)
