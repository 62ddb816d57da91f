#!/bin/sh
# Runs in the check pod of `imex preflight --node`: what the driver assumes about a node (docs/hardware.md). Only reads.
# Needs a POSIX shell, grep, sed, cat and tr; busybox has them. Each line: ok, failed or unknown, a tab, and a sentence.
#
#   HOST  root of the host, mounted read-only        PROC  proc of the host, with all its processes
HOST=${HOST-/host} PROC=${PROC-/proc}

say() { printf '%s\t%s\n' "$1" "$2"; }

# The GPU driver, and its channels
version=$(grep -o 'NVRM version:.*' "$PROC/driver/nvidia/version" 2>/dev/null | grep -o '[0-9][0-9]*\.[0-9][0-9.]*' | sed -n 1p)
if [ -n "$version" ]; then
  major=${version%%.*} rest=${version#*.} minor=${rest%%.*}
  if [ "$major" -gt 570 ] || { [ "$major" -eq 570 ] && [ "$minor" -ge 158 ]; }; then
    say ok "the GPU driver has version $version"
  else
    say failed "the GPU driver has version $version, and nvidia-imex needs 570.158.01 or later; install a newer driver"
  fi
else
  say failed "the GPU driver is not loaded: there is no $PROC/driver/nvidia/version; install or load it"
fi
if grep -q ' nvidia-caps-imex-channels$' "$PROC/devices"; then
  say ok "the GPU driver provides IMEX channels"
else
  say failed "/proc/devices has no nvidia-caps-imex-channels; load the GPU driver with NVreg_ImexChannelCount greater than 0"
fi
if [ -r "$PROC/driver/nvidia/capabilities/fabric-imex-mgmt" ]; then
  say ok "the capability fabric-imex-mgmt exists"
else
  say failed "there is no capability fabric-imex-mgmt, so that nvidia-imex gets no session; update the GPU driver"
fi

# nvidia-imex of the driver root
root=$HOST
for library in "$HOST"/run/nvidia/driver/usr/lib/*/libnvidia-ml.so.1 "$HOST"/run/nvidia/driver/usr/lib64/libnvidia-ml.so.1; do
  [ -e "$library" ] && root=$HOST/run/nvidia/driver
done
for program in nvidia-imex nvidia-imex-ctl; do
  found=
  for directory in usr/bin usr/local/bin opt/nvidia/imex/bin usr/local/nvidia/imex/bin; do
    [ -x "$root/$directory/$program" ] && found=/$directory/$program
  done
  if [ -n "$found" ]; then say ok "$program is $found in the driver root ${root#"$HOST"}/"
  else say failed "$program is missing in the driver root ${root#"$HOST"}/; install it in the version of the GPU driver"; fi
done

# What takes its place
unit=
for link in "$HOST"/etc/systemd/system/*.wants/nvidia-imex.service; do [ -L "$link" ] && unit=$link; done
if [ -n "$unit" ]; then
  say failed "the systemd unit nvidia-imex is enabled on the host; disable it (systemctl disable --now nvidia-imex), or let the host run it: imex node --imex host-managed"
else
  say ok "no systemd unit nvidia-imex is enabled on the host"
fi
foreign= own=
for process in "$PROC"/[0-9]*; do
  # The second is soft IMEX, of simulated hardware; names have at most 15 characters here.
  case $(cat "$process/comm" 2>/dev/null) in nvidia-imex | soft-nvidia-ime) ;; *) continue ;; esac
  if cat "$process/cmdline" 2>/dev/null | tr '\0' ' ' | grep -q /run/imex-dra/; then own=yes
  else foreign="$foreign ${process##*/}"; fi
done
if [ -n "$foreign" ]; then
  say failed "another nvidia-imex runs on the host (pid$foreign), and only one can; stop it, or let the host run it: imex node --imex host-managed"
else
  say ok "no other nvidia-imex runs on the host"
fi

# 50000 and 50005; state 0A is LISTEN
if [ -z "$foreign$own" ] && cat "$PROC"/1/net/tcp "$PROC"/1/net/tcp6 2>/dev/null | grep -Eq ':(C350|C355) [0-9A-F]+:0000 0A '; then
  say failed "another process listens on port 50000 or 50005, which nvidia-imex needs; stop it"
else
  say ok "no other process listens on the ports of nvidia-imex"
fi

# The host
if grep -q '^[^ ]* /dev devtmpfs ' "$PROC/1/mounts" 2>/dev/null; then
  say ok "/dev of the host is a devtmpfs"
elif [ -r "$PROC/1/mounts" ]; then
  say failed "/dev of the host is no devtmpfs, so that device nodes of channels may not work; check how it is mounted"
else
  say unknown "the mounts of the host cannot be read"
fi
if [ "$(cat "$HOST/sys/fs/selinux/enforce" 2>/dev/null)" = 1 ]; then
  say unknown "SELinux is enforcing: whether a container may open a bind-mounted channel is not verified"
fi
say done "all checks were made"
