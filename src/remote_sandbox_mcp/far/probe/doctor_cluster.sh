#!/bin/sh
# Tells how a login node's Slurm can be used. POSIX sh. $@: the options of sbatch that the operator has configured.
#
# Output as that of doctor.sh:
#
#   @@ doctor 1     the version of this format
#   @@ elsewhere    the folder of Slurm's commands where they are not in PATH, but found by a login shell or where sites
#                   install them
#   @@ sacct        "yes", "no COMPLAINT", "none" where there is none, or "late" where it did not answer
#   @@ sbatch       the same, with what sbatch says of a job that is only tested
#   @@ home         the type of the file system that has the home folder
#   @@ modules      "commands" where `module` works in a command, "login" where it takes a login shell; nothing without

LC_ALL=C
export LC_ALL
limit=$(command -v timeout) || limit=

section() {
    printf '@@ %s\n' "$1"
    [ -z "$2" ] || printf ' %s\n' "$2"
}

limited() {
    ${limit:+"$limit" 5} "$@" 2>&1 </dev/null
}

# tried COMMAND...: whether it succeeds, and the last line that it says.
tried() {
    if ! command -v "$1" >/dev/null 2>&1; then
        echo none
    elif said=$(limited "$@"); then
        printf 'yes %s\n' "$(printf '%s\n' "$said" | tail -n 1)"
    elif [ $? = 124 ]; then
        echo late
    else
        printf 'no %s\n' "$(printf '%s\n' "$said" | grep . | tail -n 1)"
    fi
}

modules() {
    if limited bash -c 'type module' >/dev/null; then
        echo commands
    elif limited bash -lc 'type module' >/dev/null; then
        echo login
    fi
}

elsewhere() {
    ! command -v sbatch >/dev/null 2>&1 || return 0
    found=$(PATH=$PATH:/opt/slurm/bin:/usr/local/slurm/bin:/cm/shared/apps/slurm/current/bin command -v sbatch || limited bash -lc 'command -v sbatch' | tail -n 1)
    case $found in /*) echo "${found%/*}" ;; esac
}

folder=$(elsewhere)
[ -z "$folder" ] || PATH=$PATH:$folder
# Those that take a while at the same time; each waits to be printed until those before it are done.
section 'doctor 1' ''
section elsewhere "$folder"
section modules "$(modules)" | {
    section sacct "$(tried sacct -n -X -S now)" | {
        section sbatch "$(tried sbatch --test-only "$@" --wrap true)"
        cat
    }
    cat
}
section home "$(limited df -PT "${HOME:-/}" | sed -n '2s/^[^ ]* *\([^ ]*\).*/\1/p')"
