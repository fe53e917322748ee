# Completion of longspan for bash: commands, their options, files.
_longspan() {
  local current=${COMP_WORDS[COMP_CWORD]} program=${COMP_WORDS[0]}
  if [ "$COMP_CWORD" -eq 1 ]; then
    mapfile -t COMPREPLY < <(compgen -W "$("$program" --help 2>/dev/null | sed -n 's/^  \([a-z][a-z]*\) .*/\1/p')" -- "$current")
  elif [[ $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$("$program" "${COMP_WORDS[1]}" --help 2>/dev/null |
      grep -oE '^ +(-h,)?--[a-z-]+' | grep -oE -e '--[a-z-]+')" -- "$current")
  elif [ "${COMP_WORDS[COMP_CWORD-1]}" = --model ]; then
    mapfile -t COMPREPLY < <(compgen -W "$("$program" models 2>/dev/null | sed -n 's/^\([a-z_]*\)  .*/\1/p')" -- "$current")
  else
    mapfile -t COMPREPLY < <(compgen -f -- "$current")
  fi
}
complete -o filenames -F _longspan longspan
