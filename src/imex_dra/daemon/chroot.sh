#!/bin/sh
# Runs a program of the GPU driver from its driver root, with our configuration and hosts file in it.
#
#     chroot.sh DIRECTORY HOST PROGRAM [ARGUMENT ...]
#
# DIRECTORY is the one that `imex node` shares with the supervisor of nvidia-imex; the program sees it under the same
# path. HOST is where the root directory of the host is mounted. `imex node` writes into DIRECTORY:
#
#     driver-root   path of the driver root on the host: / or, with the GPU Operator, /run/nvidia/driver
#
# The Secret with the certificate for TLS is mounted at /etc/imex-dra/tls of the daemon pod (TLS_DIRECTORY). The program
# sees it at DIRECTORY/tls, which is empty for everything else on the node.
#
# The mounts are in a mount namespace of this process alone. They receive what the host mounts and unmounts, and send
# nothing back: the /etc/hosts of the host stays what it is. Everything happens by exec, so the program has the pid
# that the supervisor knows. Needs a POSIX shell, chroot, mkdir, mount and unshare, and CAP_SYS_ADMIN.
set -eu

if [ "$1" != --inside ]; then
    exec unshare --mount --propagation slave sh "$0" --inside "$@"
fi
directory=$2 host=${3%/} program=$4
shift 4

fail() { # CODE SENTENCE
    echo "$2" >&2
    exit "$1"
}

[ -s "$directory/driver-root" ] || fail 1 "imex node has not said yet where the GPU driver is: check that it runs"
read -r driver <"$directory/driver-root"
root=$host${driver%/}

# First of all: without a driver, nothing is created on the host.
path=''
for bin in /usr/bin /usr/local/bin /opt/nvidia/imex/bin /usr/local/nvidia/imex/bin; do
    # A link may lead to a file that exists in the driver root only.
    if [ -e "$root$bin/$program" ] || [ -L "$root$bin/$program" ]; then
        path=$bin/$program
        break
    fi
done
[ -n "$path" ] || fail 127 "there is no $program in the driver root $driver"

if [ "$driver" != / ]; then
    # The driver's own container has its own /dev, without the nodes that `imex node` creates.
    for name in dev proc sys; do
        mkdir -p "$root/$name"
        mount --rbind "$host/$name" "$root/$name"
    done
    # persist.dat is on the host, so that nvidia-imex knows its importers also after the driver's container is gone.
    # The host empties this directory at boot.
    mkdir -p "$host/run/nvidia-imex" "$root/run/nvidia-imex"
    mount --bind "$host/run/nvidia-imex" "$root/run/nvidia-imex"
fi
mkdir -p "$root$directory"
mount --bind "$directory" "$root$directory"
[ -e "$root/etc/hosts" ] || : >"$root/etc/hosts"
mount --bind "$directory/hosts" "$root/etc/hosts"
# In the daemon pod only. The directory, not its files: the kubelet replaces them together, behind a link.
if [ -d "${TLS_DIRECTORY:=/etc/imex-dra/tls}" ]; then
    mkdir -p "$directory/tls"
    mount --bind "$TLS_DIRECTORY" "$root$directory/tls"
fi

# Libraries of the container are not those of the driver.
unset LD_LIBRARY_PATH LD_PRELOAD
exec chroot "${root:-/}" "$path" "$@"
