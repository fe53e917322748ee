# longspan_warnings(TARGET): our warnings, as errors, for C++ sources.
function(longspan_warnings target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
      -Wcast-qual -Wvla -Werror>
    # The compiler's false alarms with optimisation, sanitizers and precompiled strings.
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-maybe-uninitialized -Wno-restrict -Wno-psabi
      -Wno-array-bounds -Wno-stringop-overflow>)
endfunction()
