#!/bin/sh
# Tells what commands find on this machine. POSIX sh. $1: the Python that is configured; all that follows are the words
# that begin the command line of a container engine: first its tool, docker or podman, then the words.
#
# Output: a line "@@ NAME" opens a section, and one line that begins with a space follows where there is something to
# tell. What comes before "@@ doctor 1" was printed by start-up files.
#
#   @@ doctor 1     the version of this format
#   @@ shell        the first line of `bash --version`, or sh
#   @@ login        the user's login shell
#   @@ python       the first line of `PYTHON --version`
#   @@ tmux         the first line of `tmux -V`
#   @@ docker       "yes VERSION" of a docker that answers this user, or "no COMPLAINT"; nothing where there is none
#   @@ podman       the same
#   @@ slurm        "yes VERSION" where sinfo answers, in PATH or in a folder where sites install it, or "no COMPLAINT"; nothing
#                   where there is none
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

# engine TOOL WORDS...: what an engine answers to this user. docker has a version though its engine is not to be reached;
# podman's own folders are made by the first question to it, so that only one that is configured is asked.
engine() {
    command -v "$2" >/dev/null 2>&1 || return 0
    asked='version {{.Client.Version}}'
    [ "$1" != podman ] || [ "$1" != "$tool" ] || asked='info {{.Version.Version}}'
    [ "$1" != docker ] || asked='version {{.Server.Version}}'
    shift
    limit=$(command -v timeout) || limit=
    answers=yes
    said=$(${limit:+"$limit" 5} "$@" "${asked% *}" --format "${asked#* }" 2>&1 </dev/null) || answers=no
    printf '%s %s\n' "$answers" "$(printf '%s\n' "$said" | tail -n 1)"
}

# What sinfo answers. Its packages are often there without a cluster: then even its version is a complaint.
slurm() {
    command -v sinfo >/dev/null 2>&1 || return 0
    limit=$(command -v timeout) || limit=
    if said=$(${limit:+"$limit" 5} sinfo -h -o %P 2>&1 </dev/null); then
        printf 'yes %s\n' "$(version sinfo --version)"
    else
        printf 'no %s\n' "$(printf '%s\n' "${said:-it did not answer within 5 s}" | tail -n 1)"
    fi
}

python=${1:-python3} tool=${2:-}
shift "$(($# < 2 ? $# : 2))"
section 'doctor 1' ''
shell=$(version bash --version)
section shell "${shell:-sh}"
section login "${SHELL:-}"
section python "$(version "$python" --version)"
section tmux "$(version tmux -V)"
for name in docker podman; do
    if [ "$name" = "$tool" ]; then section "$name" "$(engine "$name" "$@")"; else section "$name" "$(engine "$name" "$name")"; fi
done
section path "${PATH:-}"
PATH="${PATH:-/usr/bin:/bin}:/usr/local/bin:/opt/slurm/bin:/usr/local/slurm/bin:/cm/shared/apps/slurm/current/bin"
section slurm "$(slurm)"
