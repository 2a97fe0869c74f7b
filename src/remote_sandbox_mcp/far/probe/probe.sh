#!/bin/sh
# Tells how busy this machine is: one round trip, no temporary files, nothing left behind. POSIX sh.
# A fork takes as long as all that is read here together, so the shell reads and writes by itself what it can.
#
# $1: "once" looks once at what the CPUs did, because the one who asks has an earlier look.
#
# Output: a line that begins with "@@ " opens a section; lines that begin with one space belong to it; any other line is
# noise (a banner, a message) and means nothing. Text that others chose (names of processes and cards) is always
# indented, so it cannot open a section. What the machine does not tell is absent. What can hang comes last, so that
# output cut off by a time limit is still worth reading.
#
#   @@ probe 1                  the version of this format
#   @@ clock                    seconds since 1970
#   @@ load                     three load averages, perhaps in braces, perhaps with more behind them
#   @@ stat                     the first line of /proc/stat, at the beginning and (not with "once") again at the end
#   @@ cpus                     `online: N` CPUs that run, `usable: N` that we may use, `quota: N` of each `period: N`
#   @@ memory                   `NAME: NUMBER`: /proc/meminfo in KiB; cgroup limits and sysctl in bytes; vm_stat in pages
#   @@ asking PROGRAM           PROGRAM is about to be run; without its own section below, it never answered
#   @@ nvidia STATUS COLUMNS    exit status of nvidia-smi; a row per GPU, or its complaint (124, 137: out of time)
#   @@ slices                   nvidia-smi -L, where a card is partitioned (MIG)
#   @@ apps STATUS COLUMNS      the same, a row per process that computes on a GPU
#   @@ rocm STATUS              exit status of rocm-smi; JSON, or its complaint
#   @@ kfd                      `GPU_ID PID BYTES`: memory that a process holds on an AMD GPU
#   @@ owners                   `PID USER ELAPSED COMMAND`: who runs the GPU processes; ELAPSED is [[DD-]HH:]MM:SS or -
#   @@ lease CARD USER          who holds a lock on a card's file (far/jobs/cards.py), - if that is not known; what it says
#   @@ disk root|home           df -Pk of / and of the home folder
#   @@ end                      nothing was cut off

LC_ALL=C
# A shell that nobody logged in to may miss the folders of the vendors' tools; what PATH has already goes first.
PATH="${PATH:-/usr/bin:/bin}:/usr/sbin:/sbin:/usr/local/bin:/opt/rocm/bin:/usr/local/nvidia/bin:/usr/lib/wsl/lib"
export LC_ALL PATH
system=$(uname -s)
newline='
'

# section NAME [TEXT]
section() {
    printf '@@ %s\n' "$1"
    [ -z "${2:-}" ] || printf '%s\n' "$2" | sed 's/^/ /'
}

# The same, or nothing where there is no text.
tell() {
    [ -z "$2" ] || section "$1" "$2"
}

has() {
    command -v "$1" >/dev/null 2>&1
}

# first SECTION FILE: a section of the file's first line, if it can be read
first() {
    if [ -r "$2" ] && read -r line <"$2"; then
        printf '@@ %s\n %s\n' "$1" "$line"
    fi
}

# A broken driver or a dead file server answers never: at most 8 seconds, where the machine has timeout(1).
limit='timeout -k 1 8'
find_limit() {
    limit=
    if timeout -k 1 8 true; then
        limit='timeout -k 1 8'
    elif timeout 8 true; then
        limit='timeout 8'
    fi >/dev/null 2>&1
}

limited() {
    # shellcheck disable=SC2086 # a command with its options, or no words at all
    $limit "$@" </dev/null 2>&1
}

# named FILE: ` NAME: CONTENT`, if it can be read
named() {
    if [ -r "$1" ] && read -r value <"$1"; then
        printf ' %s: %s\n' "${1##*/}" "$value"
    fi
}

# How many CPUs run; /sys tells ranges such as `0-3,8`.
count_cpus() {
    online=0
    { read -r ranges </sys/devices/system/cpu/online; } 2>/dev/null || ranges=
    while [ -n "$ranges" ]; do
        range=${ranges%%,*}
        ranges=${ranges#"$range"}
        ranges=${ranges#,}
        online=$((online + ${range#*-} - ${range%-*} + 1))
    done
    [ "$online" -gt 0 ] || online=$(getconf _NPROCESSORS_ONLN || sysctl -n hw.ncpu || grep -c ^processor /proc/cpuinfo)
}

cpus() {
    printf ' online: %s\n usable: %s\n' "$online" "$(nproc || echo "$online")"
    if [ -r /sys/fs/cgroup/cpu.max ]; then
        read -r quota period </sys/fs/cgroup/cpu.max
    elif [ -r /sys/fs/cgroup/cpu/cpu.cfs_quota_us ]; then
        read -r quota </sys/fs/cgroup/cpu/cpu.cfs_quota_us
        read -r period </sys/fs/cgroup/cpu/cpu.cfs_period_us
    fi
    printf ' quota: %s\n period: %s\n' "${quota:-none}" "${period:-none}"
}

linux_memory() {
    sed -n -E 's/^((MemTotal|MemFree|MemAvailable|Buffers|Cached|SReclaimable|Shmem):)/ \1/p' /proc/meminfo
    for folder in /sys/fs/cgroup /sys/fs/cgroup/memory; do
        for name in memory.max memory.current memory.limit_in_bytes memory.usage_in_bytes; do
            named "$folder/$name"
        done
        [ ! -r "$folder/memory.stat" ] || sed -n -E 's/^((total_)?inactive_file) / \1: /p' "$folder/memory.stat"
    done
}

# Each system knows some of these names, and says nothing on standard output about the others.
sysctl_memory() {
    for name in hw.memsize hw.physmem hw.pagesize vm.stats.vm.v_free_count vm.stats.vm.v_inactive_count \
        vm.stats.vm.v_laundry_count; do
        value=$(sysctl -n "$name" 2>/dev/null) && printf '%s: %s\n' "$name" "$value"
    done
    ! has vm_stat || vm_stat
}

host() {
    printf '@@ clock\n %s\n' "$(date +%s)"
    if [ "$system" = Linux ]; then
        first stat /proc/stat
        first load /proc/loadavg
        echo '@@ memory'
        linux_memory
    else
        tell load "$(sysctl -n vm.loadavg)"
        tell memory "$(sysctl_memory)"
    fi
    echo '@@ cpus'
    cpus
}

# Where ps cannot be asked for single processes (busybox), /proc knows their owners.
owners_from_proc() {
    for pid in $1; do
        [ ! -d "/proc/$pid" ] || echo "$pid $(stat -c %U "/proc/$pid") - $(cat "/proc/$pid/comm")"
    done
}

# owners PIDS: one on each line, among them perhaps what is no number
owners() {
    pids=$(printf '%s\n' "$1" | tr -dc '0-9\n' | grep . | sort -un | head -n 256)
    [ -n "$pids" ] || return 0
    user=user
    # ps on Linux prints a number in place of a name that is longer than its column.
    [ "$system" != Linux ] || user=user:32
    list=$(ps -o pid= -o "$user=" -o etime= -o comm= -p "$(printf '%s\n' "$pids" | paste -s -d , -)" 2>/dev/null)
    tell owners "${list:-$(owners_from_proc "$pids" 2>/dev/null)}"
}

# leases CARDS: one on each line. Only files of cards that are here are looked at: anybody can make others. Whether one is
# locked is read, not tried: a lock of ours, however short, would be in the way of whoever wants the card now.
leases() {
    [ -r /proc/locks ] || return 0
    for folder in /run/lock /var/lock /tmp; do
        [ "$(stat -c '%F %a %u' "$folder" 2>/dev/null)" != 'directory 1777 0' ] || break
    done
    printf '%s\n' "$1" | tr -dc 'A-Za-z0-9_\n-' | grep . | sort -u | head -n 256 | while read -r card; do
        file=$folder/rsmcp-gpu-$card
        if [ -L "$file" ] || [ ! -f "$file" ] || ! inode=$(stat -c %i "$file"); then continue; fi
        locked=$(grep "^[0-9]*: FLOCK .*:$inode 0 EOF" /proc/locks | head -n 1 | tr -s ' ' | cut -d ' ' -f 5)
        [ -n "$locked" ] || continue
        record=$(head -c 600 "$file" | tr -dc '[:print:]\n')
        keeper=$(printf '%s\n' "$record" | sed -n 's/^pid \([0-9]\{1,9\}\)$/\1/p' | head -n 1)
        user=$(stat -c %U "/proc/${keeper:-none}" || stat -c %U "/proc/$locked" || echo -)
        section "lease $card $user" "$record"
    done 2>/dev/null
}

nvidia_gpus() {
    columns=index,uuid,name,driver_version,utilization.gpu,utilization.memory,memory.total,memory.used,memory.free
    columns=$columns,temperature.gpu,power.draw,power.limit,compute_mode
    asked=$columns,mig.mode.current
    rows=$(limited nvidia-smi --query-gpu="$asked" --format=csv,noheader,nounits)
    status=$?
    case $rows in
    *'not a valid field'*)
        # Drivers before 450 have not heard of MIG.
        asked=$columns
        rows=$(limited nvidia-smi --query-gpu="$asked" --format=csv,noheader,nounits)
        status=$?
        ;;
    esac
    section "nvidia $status $asked" "$rows"
    case $rows in *', Enabled'*) section slices "$(limited nvidia-smi -L)" ;; esac
}

nvidia() {
    has nvidia-smi || return 0
    section 'asking nvidia-smi'
    # The two sides of the pipe run at the same time: each question can take seconds.
    nvidia_gpus | {
        columns=gpu_uuid,pid,used_memory,process_name
        rows=$(limited nvidia-smi --query-compute-apps="$columns" --format=csv,noheader,nounits)
        status=$?
        gpus=$(cat)
        printf '%s\n' "$gpus"
        section "apps $status $columns" "$rows"
        leases "$(printf '%s\n' "$gpus" | sed 's/.*(UUID: \(MIG-[^)]*\)).*/,\1/' | cut -s -d , -f 2 | tr / _)"
        owners "$(printf '%s\n' "$rows" | cut -d , -f 2)"
    }
}

amd_processes() {
    for file in /sys/class/kfd/kfd/proc/*/vram_*; do
        folder=${file%/*}
        [ ! -r "$file" ] || echo "${file##*_} ${folder##*/} $(cat "$file")"
    done
}

amd() {
    has rocm-smi || return 0
    section 'asking rocm-smi'
    answer=$(limited rocm-smi --showid --showproductname --showuse --showmeminfo vram --showtemp --showpower --json)
    section "rocm $?" "$answer"
    processes=$(amd_processes 2>/dev/null)
    tell kfd "$processes"
    leases "$(printf '%s\n' "$answer" | sed 's/[,{]/\
/g' | sed -n 's/.*"GUID": "\([0-9]*\)".*/\1/p; s/.*"\(card[0-9]*\)".*/\1/p')"
    owners "$(printf '%s\n' "$processes" | cut -d ' ' -f 2)"
}

disks() {
    if rows=$(limited df -Pk / "${HOME:-/}"); then
        before=${rows%"$newline"*}
        printf '@@ disk root\n %s\n@@ disk home\n %s\n' "${before##*"$newline"}" "${rows##*"$newline"}"
        return
    fi
    # The home folder is not there or its server does not answer, or this is no timeout(1) as it is elsewhere.
    find_limit
    section 'disk root' "$(limited df -Pk /)"
    [ -n "$limit" ] || section 'disk home' "$(limited df -Pk "${HOME:-/}")"
}

# Again all at once; each waits to be printed until those before it are done.
cards_and_disks() {
    find_limit
    disks | {
        amd | {
            nvidia
            cat
        }
        cat
    }
}

main() {
    section 'probe 1'
    count_cpus 2>/dev/null
    if [ "${1:-}" != once ] && [ "$system" = Linux ]; then
        # What all CPUs did meanwhile is known only after some ticks of their clocks.
        if [ "$online" -lt 8 ]; then sleep 0.2; else sleep 0.05; fi >/dev/null 2>&1 &
        pause=$!
    fi
    host 2>/dev/null
    if has nvidia-smi || has rocm-smi; then
        cards_and_disks
    else
        disks
    fi
    if [ -n "${pause:-}" ]; then
        wait "$pause"
        first stat /proc/stat
    fi
    section end
}

main "$@"
