# Completes remote-sandbox-mcp in bash. Names are asked of the program itself: see cli/completion.py.
_remote_sandbox_mcp() {
    local line word
    local -a before
    COMPREPLY=()
    word=${COMP_LINE:0:COMP_POINT}
    # Words as typed: bash has split them at colons and equal signs.
    read -ra before <<<"$word"
    if [[ $word == *[[:space:]] ]]; then word=""; else word=${before[-1]}; unset 'before[-1]'; fi
    while IFS= read -r line; do
        line=${line%%$'\t'*}
        if [[ $line == :files ]]; then
            compopt -o default 2>/dev/null
        else
            # Readline replaces only what is after the last colon or equal sign.
            [[ $COMP_WORDBREAKS == *:* && $word == *:* ]] && line=${line#"${word%"${word##*:}"}"}
            [[ $COMP_WORDBREAKS == *=* && $word == *=* ]] && line=${line#"${word%"${word##*=}"}"}
            COMPREPLY+=("$line")
        fi
    done < <("${before[0]}" __complete "${before[@]:1}" "$word" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *: ]]; then compopt -o nospace 2>/dev/null; fi
}
complete -F _remote_sandbox_mcp remote-sandbox-mcp
