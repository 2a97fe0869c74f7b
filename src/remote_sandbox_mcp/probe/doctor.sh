#!/bin/sh
# Tells what commands find on this machine. POSIX sh. $1: the Python that is configured.
#
# Output: a line "@@ NAME" opens a section, and one line that begins with a space follows where there is something to
# tell. What comes before "@@ doctor 1" was printed by start-up files.
#
#   @@ doctor 1     the version of this format
#   @@ shell        the first line of `bash --version`, or sh
#   @@ login        the user's login shell
#   @@ python       the first line of `PYTHON --version`
#   @@ tmux         the first line of `tmux -V`
#   @@ rsync        the first line of `rsync --version`
#   @@ path         PATH as commands see it

# section NAME TEXT
section() {
    printf '@@ %s\n' "$1"
    [ -z "$2" ] || printf ' %s\n' "$2"
}

# The first line that a program says of itself, on whichever stream.
version() {
    ! command -v "$1" >/dev/null 2>&1 || "$@" 2>&1 </dev/null | head -n 1
}

section 'doctor 1' ''
shell=$(version bash --version)
section shell "${shell:-sh}"
section login "${SHELL:-}"
section python "$(version "${1:-python3}" --version)"
section tmux "$(version tmux -V)"
section rsync "$(version rsync --version)"
section path "${PATH:-}"
