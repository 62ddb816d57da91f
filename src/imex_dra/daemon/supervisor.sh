#!/bin/sh
# Runs nvidia-imex and starts it again when it ends. Everything else is decided by `imex node`, which may be killed,
# upgraded or missing at any time without any effect on nvidia-imex.
#
#     supervisor.sh DIRECTORY -- COMMAND [ARGUMENT ...]
#
# COMMAND gets two more arguments: -c and the path of its configuration. `imex node` writes into DIRECTORY:
#
#     current   symbolic link to the configuration that is to run; without it, nothing runs
#     hosts     hosts file of nvidia-imex; its first line says which member list it contains
#     control   FIFO for commands:
#                 apply        run what `current` says: stop a process that runs with another configuration, and
#                              start one; does nothing if that is what runs already
#                 reload PID   send SIGUSR1, at most once in 5 s, unless PID has ended in the meantime
#
# and this script writes:
#
#     status    state (running, stopped: there is nothing to run, failed: it ended and will be started again), pid,
#               configuration, first line of the hosts file at the start or at the last reload, exit code of the
#               process before, number of restarts, checksum of the certificate at the start or the last reload
#     certificate
#               checksum of the certificate for TLS that is mounted at TLS_DIRECTORY. `imex node` cannot read the
#               Secret; it sends `reload` when the checksum differs from the one in `status`
#     address   the IP address of the pod, if POD_IP says it: only in the network of pods, where it changes with every pod
#     started   its modification time is the time of the last start
#     output    the last output of the last process that has ended
#
# DIRECTORY must not survive a reboot: nvidia-imex may start only after `imex node` has read the partition again. One
# loop takes commands, and also ends of processes and timers, from the FIFO, so nothing interrupts anything else.
# Needs a POSIX shell whose test knows -ef (dash, busybox, bash), cat, mkdir, mkfifo, mv, readlink, rm, sha256sum, sleep and
# tail, and works as PID 1.
set -u

leaving='' # this script is to end
# First of all, or a signal during the start is lost to PID 1, and ends any other shell without a report. Until the
# FIFO is open, it is only remembered.
trap 'leaving=yes' INT TERM

STOP_TIMEOUT=${STOP_TIMEOUT:-30}
RELOAD_INTERVAL=${RELOAD_INTERVAL:-5} # nvidia-imex ignores a SIGUSR1 that arrives sooner after the previous one
TLS_DIRECTORY=${TLS_DIRECTORY:-/etc/imex-dra/tls}
CERTIFICATE_INTERVAL=${CERTIFICATE_INTERVAL:-30} # seconds between two looks; the kubelet needs a minute anyway
LOG_LINES=${LOG_LINES:-200} # of nvidia-imex in LOG_WINDOW seconds; unreachable members cause lines forever
LOG_WINDOW=${LOG_WINDOW:-60}
STABLE_AFTER=${STABLE_AFTER:-60}      # a process that ran this long did not fail to start

state=stopped # also: starting (its pid is not known yet), stopping
pid='' identity='' hosts='' exit='' restarts=0
certificate='' # the one that is mounted
loaded='' # the one that the process has
delay=0 # seconds until the next restart
since=0 # when the process started
reload_pending='' # the pid to reload as soon as it is allowed again
retry_timer='' stop_timer='' reload_timer='' certificate_timer='' # pids of timers that run

send() { # EVENT
    # Not by the path: also a supervisor whose directory was removed must end.
    echo "$*" >&4
}

after() { # SECONDS EVENT; the timer is $!
    (
        exec 3<&-
        trap 'kill "$!"; exit' TERM
        sleep "$1" &
        wait "$!"
        shift
        send "$@"
    ) &
}

cancel() { # [TIMER]
    [ -z "$1" ] || kill "$1" 2>/dev/null
}

is_superseded() {
    # A pod that was deleted by force may still run beside the next one. Each supervisor has a FIFO of its own, and the one
    # at the path is that of the newest, which alone tells `imex node` what runs.
    [ ! control -ef /proc/self/fd/3 ]
}

report() { # STATE
    state=$1
    ! is_superseded || return 0
    write_status
}

write_status() {
    printf '%s\n' "state=$state" "pid=$pid" "identity=$identity" "hosts=$hosts" "exit=$exit" \
        "restarts=$restarts" "certificate=$loaded" >status.new
    mv status.new status 3<&-
}

read_hosts() {
    # shellcheck disable=SC2094 # a variable and a file of the same name
    read -r hosts <hosts
}

read_certificate() {
    # The key changes together with it, and its checksum need not be known.
    if [ -s "$TLS_DIRECTORY/tls.crt" ]; then
        certificate=$(cat "$TLS_DIRECTORY/tls.crt" "$TLS_DIRECTORY/ca.crt" 2>/dev/null 3<&- | sha256sum 3<&-)
        certificate=${certificate%% *}
    else
        certificate=''
    fi
    echo "$certificate" >certificate.new
    mv certificate.new certificate 3<&-
}

run() { # COMMAND
    exec 3<&-
    # A signal to the whole process group must not keep this shell from telling how the process ended.
    trap : INT TERM
    "$@" -c "$PWD/configs/$identity/config.cfg" 2>&1 4>&- &
    child=$!
    send started "$child"
    wait "$child"
    code=$?
    while kill -0 "$child" 2>/dev/null; do # a signal interrupted the wait
        wait "$child"
        code=$?
    done
    send exited "$child" "$code"
}

keep_output() {
    exec 3<&-
    # Without a reader, the next line that the process writes would kill it.
    trap '' INT TERM
    limit_log | tail -c 2000 >"output.$restarts"
    mv "output.$restarts" output
}

limit_log() { # copies all lines to stdout, and a limited number of them to stderr, which is the log of the pod
    uptime
    window=$now logged=0 omitted=0
    while IFS= read -r line || [ -n "$line" ]; do
        printf '%s\n' "$line"
        uptime
        if [ $((now - window)) -ge "$LOG_WINDOW" ]; then
            log_omitted
            window=$now logged=0 omitted=0
        fi
        if [ "$logged" -lt "$LOG_LINES" ]; then
            logged=$((logged + 1))
            printf '%s\n' "$line" >&2
        else
            omitted=$((omitted + 1))
        fi
    done
    log_omitted
}

log_omitted() {
    [ "$omitted" -eq 0 ] || echo "$omitted lines of nvidia-imex were not logged: at most $LOG_LINES in $LOG_WINDOW s" >&2
}

start() { # COMMAND
    cancel "$retry_timer"
    pid='' reload_pending='' retry_timer=''
    if ! identity=$(readlink current); then
        identity='' hosts='' exit=''
        report stopped
        return
    fi
    identity=${identity##*/}
    # Before the process reads the file, so that the status never names a later member list than the process has.
    read_hosts
    read_certificate
    loaded=$certificate
    : >started
    state=starting
    # Both close their end to read from: only this shell may have it, because so `imex node` sees that it runs.
    run "$@" | keep_output &
}

stop() {
    state=stopping
    kill -TERM "$pid"
    after "$STOP_TIMEOUT" kill "$pid"
    stop_timer=$!
}

leave() {
    for timer in "$retry_timer" "$stop_timer" "$reload_timer" "$certificate_timer"; do cancel "$timer"; done
    exit=''
    report stopped
    exit 0
}

apply() { # COMMAND
    case $state in
    stopped) start "$@" ;;
    failed | starting | running)
        if [ "$(readlink current)" != "configs/$identity" ]; then
            case $state in
            failed) exit='' delay=0 && start "$@" ;;
            starting) state=stopping ;;
            running) stop ;;
            esac
        fi
        ;;
    esac
}

reload() {
    if [ -n "$reload_timer" ]; then
        reload_pending=$pid
        return
    fi
    reload_pending=''
    after "$RELOAD_INTERVAL" reloadable
    reload_timer=$!
    # Read before the signal: nvidia-imex then has at least this member list.
    read_hosts
    read_certificate
    loaded=$certificate
    kill -USR1 "$pid"
    report running
}

uptime() { # sets now; the wall clock may jump
    read -r now _ </proc/uptime
    now=${now%.*}
}

ended() { # COMMAND
    pid=''
    if [ -n "$leaving" ] || is_superseded; then leave; fi
    if [ "$state" = stopping ]; then
        cancel "$stop_timer"
        exit='' delay=0 stop_timer=''
        start "$@"
        return
    fi
    uptime
    [ $((now - since)) -lt "$STABLE_AFTER" ] || delay=0
    restarts=$((restarts + 1))
    report failed
    if [ "$delay" -eq 0 ]; then
        start "$@"
    else
        after "$delay" retry
        retry_timer=$!
    fi
    case $delay in
    0) delay=1 ;;
    1 | 2 | 4) delay=$((delay * 2)) ;;
    8) delay=10 ;;
    esac
}

mkdir -p "$1" && cd "$1" || exit
shift 2
: >>hosts
echo "${POD_IP:-}" >address
# A new FIFO, since another supervisor may still read from the former one.
rm -f control.new
mkfifo -m 600 control.new && mv control.new control || exit
# Before the FIFO is open: a program that finds a reader must not find the status of an earlier supervisor.
write_status
read_certificate
exec 3<>control # to read from, in this shell alone
exec 4>control  # to write to
# From here on an event like all others. The shell runs it when `read` is interrupted; if the signal arrives in the
# microsecond before `read` blocks, only with the next event.
trap 'send leave' INT TERM
[ -z "$leaving" ] || leave
start "$@"
if [ -d "$TLS_DIRECTORY" ]; then
    after "$CERTIFICATE_INTERVAL" certificate
    certificate_timer=$!
fi
while :; do
    read -r event argument code <&3 || continue # a signal
    case $event in
    apply) apply "$@" ;;
    reload) [ "$state $argument" != "running $pid" ] || reload ;;
    reloadable)
        reload_timer=''
        [ "$state $reload_pending" != "running $pid" ] || reload
        ;;
    certificate)
        read_certificate
        after "$CERTIFICATE_INTERVAL" certificate
        certificate_timer=$!
        ;;
    started)
        [ -z "$pid" ] || continue # of a supervisor before
        pid=$argument
        uptime
        since=$now
        if [ "$state" = stopping ] || [ -n "$leaving" ]; then stop; else report running; fi
        ;;
    exited)
        [ "$argument" = "$pid" ] || continue # of a supervisor before
        exit=$code
        echo "nvidia-imex ended with exit code $exit" >&2
        ended "$@"
        ;;
    retry)
        [ -n "$retry_timer" ] || continue # it was too late to cancel it
        retry_timer=''
        # It would ask for the session of the newest's process, and `started` is the newest's.
        if is_superseded; then leave; fi
        start "$@"
        ;;
    kill)
        [ "$argument" = "$pid" ] || continue
        stop_timer=''
        kill -KILL "$pid"
        ;;
    leave)
        leaving=yes
        case $state in
        stopped | failed) leave ;;
        running) stop ;;
        esac
        ;;
    esac
done
