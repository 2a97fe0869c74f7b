#compdef remote-sandbox-mcp
# Completes remote-sandbox-mcp in zsh. Names are asked of the program itself: see cli/completion.py.
_remote_sandbox_mcp() {
    local line word told
    local -a found shown
    for line in "${(@f)$("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        [[ -n $line ]] || continue
        if [[ $line == :files ]]; then
            _files
            continue
        fi
        word=${line%%$'\t'*} told=${line#*$'\t'}
        found+=("$word")
        if [[ $told == "$line" ]]; then shown+=("$word"); else shown+=("$word  -- $told"); fi
    done
    if (( ${#found} )); then
        if [[ $found[1] == *: ]]; then compadd -S '' -l -d shown -a found; else compadd -l -d shown -a found; fi
    fi
}
if [[ $funcstack[1] == _remote_sandbox_mcp ]]; then
    _remote_sandbox_mcp "$@"
elif (( $+functions[compdef] )); then
    compdef _remote_sandbox_mcp remote-sandbox-mcp
fi
