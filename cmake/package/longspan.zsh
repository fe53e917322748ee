#compdef longspan
# Completion of longspan for zsh, by that for bash.
autoload -U +X bashcompinit && bashcompinit
source "${LONGSPAN_COMPLETION:-/usr/share/bash-completion/completions/longspan}"
