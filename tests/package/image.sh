#!/bin/bash
# Runs the container image with podman, with the privileges that docs/operations.md gives it, and fails unless it profiles.
#
#   unshare --mount --propagation private image.sh ARCHIVE
set -eu
archive=$(realpath "$1")
storage=$(mktemp -d)
trap 'podman_ rm --all --force >/dev/null 2>&1 || true; umount -R "$storage" 2>/dev/null || true; rm -rf "$storage"' EXIT
podman_() {
    podman --runtime runc --storage-driver vfs --root "$storage/images" --runroot "$storage/run" --cgroup-manager cgroupfs --events-backend none "$@"
}
fail() {
    echo "image.sh: $*" >&2
    exit 1
}

# Few enough for a podman that may not raise its own.
limits="--ulimit nofile=4096:4096 --ulimit nproc=4096:4096"
# shellcheck disable=SC2086 # below, $limits are several words

# 25 MB, compressed.
bytes=$(stat -c %s "$archive")
[ "$bytes" -le 25000000 ] || fail "the image has $bytes bytes"
podman_ load --quiet --input "$archive"
version=$(podman_ run --rm $limits --network none jjleak:0.1.0 --version)
[ "${version%% *}" = jjleak ] || fail "--version says $version"
podman_ run --rm $limits --network none --read-only jjleak:0.1.0 daemon --config /etc/jjleak/jjleak.toml --check-config ||
    fail "the daemon cannot read its configuration"

# The filter of system calls of podman 4.3 lets bpf(2) through with CAP_SYS_ADMIN only.
podman_ run --rm $limits --network none --pid=host --read-only --cap-drop=ALL --security-opt seccomp=unconfined \
    --cap-add=BPF,PERFMON,SYS_PTRACE,DAC_READ_SEARCH --cap-add=CHECKPOINT_RESTORE,SYS_ADMIN \
    jjleak:0.1.0 self-test || fail "the self-test fails in a container"
echo "image: $bytes bytes, and its self-test passes"
