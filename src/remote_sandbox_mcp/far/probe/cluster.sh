#!/bin/sh
# Tells what a Slurm cluster has, and what of it is free. POSIX sh, run on the login node. $1: the seconds for which an
# answer is kept, in a file of the home folder that all sessions share: the cluster is not asked more often than that.
#
# Output as that of probe.sh: a line that begins with "@@ " opens a section, lines that begin with one space belong to it.
# STATUS is the exit status of the command that was asked (124, 137: out of time), and its complaint is among the lines.
#
#   @@ cluster AGE              how many seconds ago the following was asked
#   @@ nodes STATUS             sinfo, added up: `NODES IDLE_CPUS CPUS PARTITION AVAILABLE TIME_LIMIT STATE GRES GRES_USED`;
#                               what is unknown is "-", and GRES_USED is missing where sinfo does not know that column
#   @@ mine STATUS              squeue of this user: `COUNT PARTITION STATE`, and of the oldest pending job a row
#                               `oldest NUMBER PARTITION STATE SUBMITTED EXPECTED_START REASON`
#   @@ waiting STATUS           squeue of all users' pending jobs, arrays as one: `COUNT PARTITIONS REASON`
#   @@ limits STATUS            sacctmgr: `CLUSTER|ACCOUNT|PARTITION|` and so on, of this user (see assoc below)
#   @@ qos STATUS               sacctmgr: `NAME|` and so on, of all QOS (see qos below)
#   @@ told                     nothing was cut off

LC_ALL=C
# Times as seconds since 1970.
SLURM_TIME_FORMAT=%s
# Sites install Slurm in places that only a login shell may know; what PATH has already goes first.
PATH="${PATH:-/usr/bin:/bin}:/opt/slurm/bin:/usr/local/slurm/bin:/usr/local/bin:/cm/shared/apps/slurm/current/bin"
export LC_ALL SLURM_TIME_FORMAT PATH
# Formats of the user's own would change every answer.
unset SINFO_FORMAT SINFO_PARTITION SINFO_SORT SINFO_ALL SQUEUE_FORMAT SQUEUE_FORMAT2 SQUEUE_PARTITION SQUEUE_SORT \
    SQUEUE_STATES SQUEUE_USERS SQUEUE_ACCOUNT SQUEUE_QOS SQUEUE_ARRAY SQUEUE_ALL SLURM_CLUSTERS
rate=${1:-10}
limit=
if timeout -k 1 5 true; then
    limit='timeout -k 1 5'
elif timeout 5 true; then
    limit='timeout 5'
fi >/dev/null 2>&1

# ask NAME FILTER COMMAND...: a section with what a command says, put through a filter where it succeeded.
ask() {
    name=$1 filter=$2
    shift 2
    # shellcheck disable=SC2086 # a command with its options, or no words at all
    said=$($limit "$@" 2>&1 </dev/null)
    status=$?
    [ "$status" != 0 ] || said=$(printf '%s\n' "$said" | "$filter")
    printf '@@ %s %s\n' "$name" "$status"
    [ -z "$said" ] || printf '%s\n' "$said" | head -n 2000 | sed 's/^/ /'
}

# Nodes that differ in nothing that is told here are one row: thousands of them become a few.
nodes() {
    awk '{
        gsub(/\(null\)/, "-"); gsub(/\([^)]*\)/, "")
        if (split($5, cpus, "/") != 4) next
        key = $1 " " $2 " " $3 " " $4 " " $7 " " $8
        count[key] += $6; idle[key] += cpus[2]; all[key] += cpus[4]
    } END { for (key in count) print count[key], idle[key], all[key], key }'
}

mine() {
    awk 'NF { count[$2 " " $3]++ } $3 == "PENDING" && !oldest { oldest = $0 }
    END { for (key in count) print count[key], key; if (oldest) print "oldest", oldest }'
}

waiting() {
    awk 'NF { count[$1 " " $2]++ } END { for (key in count) print count[key], key }'
}

assoc=Cluster,Account,Partition,QOS,DefaultQOS,MaxJobs,MaxSubmit,MaxTRES,MaxWall,GrpJobs,GrpTRES
qos=Name,MaxJobsPU,MaxSubmitPU,MaxTRESPU,MaxTRES,MaxWall,GrpTRES

survey() {
    me=$(id -un)
    columns=Partition:200,Available:20,Time:40,StateLong:40,CPUsState:80,Nodes:20,Gres:1000,GresUsed:1000
    # All of them at once; each waits to be printed until those before it are done.
    ask waiting waiting squeue -h -t PENDING -o '%P %r' | {
        ask qos cat sacctmgr -nP show qos "format=$qos" | {
            ask limits cat sacctmgr -nP show assoc "user=$me" "format=$assoc" | {
                ask mine mine squeue -h -r -u "$me" -S V,i -o '%i %P %T %V %S %r' | {
                    ask nodes nodes sinfo -h -O "$columns"
                    cat
                }
                cat
            }
            cat
        }
        cat
    }
    echo '@@ told'
}

folder=${HOME:-/nowhere}/.local/state/remote-sandbox
file=$folder/cluster-$(uname -n)

# tell: what the file has, if it is young enough.
tell() {
    [ -r "$file" ] || return 1
    read -r asked <"$file" || return 1
    case $asked in '' | *[!0-9]*) return 1 ;; esac
    age=$(($(date +%s) - asked))
    [ "$age" -ge 0 ] && [ "$age" -lt "$rate" ] || return 1
    printf '@@ cluster %s\n' "$age"
    tail -n +2 "$file"
}

# One session asks, and the others wait for what it learns.
main() {
    ! tell || return 0
    now=$(date +%s)
    answer=$(survey)
    printf '@@ cluster 0\n%s\n' "$answer"
    # A home folder that is full or read-only keeps nothing.
    if printf '%s\n%s\n' "$now" "$answer" >"$file.$$"; then mv -f "$file.$$" "$file"; else rm -f "$file.$$"; fi
}

umask 077
# A module may have to be loaded first, which a login shell does.
if ! command -v sinfo >/dev/null 2>&1; then
    # shellcheck disable=SC2086 # a command with its options, or no words at all
    found=$($limit bash -lc 'command -v sinfo' 2>/dev/null </dev/null | tail -n 1)
    PATH=$PATH:${found%/*}
fi
if ! command -v sinfo >/dev/null 2>&1; then
    printf '@@ cluster 0\n@@ nodes 127\n sinfo is not installed there, or not in PATH\n@@ told\n'
elif { mkdir -p "$folder" && true >>"$file.lock" && command -v flock; } >/dev/null; then
    { flock -w 6 9 || :; main; } 9>"$file.lock"
else
    main
fi 2>/dev/null
