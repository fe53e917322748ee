# Completion of longspan for bash: commands, their options, files.
_longspan() {
  local current=${COMP_WORDS[COMP_CWORD]} program=${COMP_WORDS[0]} command=("${COMP_WORDS[1]}")
  [ "${COMP_WORDS[1]}" = study ] && [ "$COMP_CWORD" -gt 2 ] && command+=("${COMP_WORDS[2]}")
  if [ "$COMP_CWORD" -eq 1 ]; then
    mapfile -t COMPREPLY < <(compgen -W "$("$program" --help 2>/dev/null | sed -n 's/^  \([a-z][a-z]*\) .*/\1/p')" -- "$current")
  elif [ "$COMP_CWORD" -eq 2 ] && [ "${command[0]}" = study ]; then
    mapfile -t COMPREPLY < <(compgen -W "$("$program" study --help 2>/dev/null | sed -n 's/^  \([a-z][a-z]*\) .*/\1/p')" -- "$current")
  elif [[ $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$("$program" "${command[@]}" --help 2>/dev/null |
      grep -oE '^ +(-h,)?--[a-z-]+' | grep -oE -e '--[a-z-]+')" -- "$current")
  elif [ "${COMP_WORDS[COMP_CWORD-1]}" = --model ]; then
    mapfile -t COMPREPLY < <(compgen -W "$("$program" models 2>/dev/null | sed -n 's/^\([a-z_]*\)  .*/\1/p')" -- "$current")
  else
    mapfile -t COMPREPLY < <(compgen -f -- "$current")
  fi
}
complete -o filenames -F _longspan longspan
