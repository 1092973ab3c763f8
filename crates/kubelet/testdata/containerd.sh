#!/bin/sh
# A containerd of its own for `cargo test -p kubelet real -- --ignored`: root, state, socket, network
# and images beneath one directory; `stop` removes every trace. Needs root, containerd, runc, the CNI
# plugins, nft and a static busybox.
set -eu
D=/tmp/pintle-kubelet-test
ctr="ctr -a $D/c.sock -n k8s.io"

image() { # name, entrypoint words
  name=$1; shift
  rm -rf "$D/i"; mkdir -p "$D/i/blobs/sha256" "$D/i/rootfs/bin" "$D/i/rootfs/tmp" "$D/i/rootfs/etc"
  cp "$(command -v busybox)" "$D/i/rootfs/bin/busybox"
  for a in sh sleep echo cat ls id wget httpd nc env kill touch test printenv seq; do ln -s busybox "$D/i/rootfs/bin/$a"; done
  echo 'root:x:0:0::/:/bin/sh' > "$D/i/rootfs/etc/passwd"
  blob() { s=$(sha256sum "$1" | cut -d' ' -f1); n=$(stat -c %s "$1"); mv "$1" "$D/i/blobs/sha256/$s"; }
  tar -C "$D/i/rootfs" --owner=0 --group=0 -cf "$D/i/l" .; blob "$D/i/l"; layer=$s layersize=$n
  entry=$(printf '"%s",' "$@"); entry="[${entry%,}]"
  printf '{"architecture":"amd64","os":"linux","config":{"Entrypoint":%s,"Env":["PATH=/bin"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' "$entry" "$layer" > "$D/i/c"
  blob "$D/i/c"; config=$s configsize=$n
  printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:%s","size":%s},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:%s","size":%s}]}' "$config" "$configsize" "$layer" "$layersize" > "$D/i/m"
  blob "$D/i/m"
  printf '{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:%s","size":%s,"annotations":{"io.containerd.image.name":"%s"}}]}' "$s" "$n" "$name" > "$D/i/index.json"
  echo '{"imageLayoutVersion":"1.0.0"}' > "$D/i/oci-layout"
  rm -rf "$D/i/rootfs"
  tar -C "$D/i" -cf "$D/image.tar" blobs index.json oci-layout
  $ctr images import "$D/image.tar" > /dev/null
}

# The runtimes and shims of this directory, whoever started them and whatever the pid file says: a
# start that was interrupted or came twice wrote none, or that of a runtime which never ran.
ours() { # the program's name, as the kernel cuts it
  for p in /proc/[0-9]*; do
    [ "$(cat "$p/comm" 2>/dev/null)" = "$1" ] || continue
    ! tr '\0' ' ' 2>/dev/null < "$p/cmdline" | grep -qF -- " $D/" || echo "${p#/proc/}"
  done
}

# Ends processes: SIGTERM, then SIGKILL after ten seconds.
end() {
  for p in "$@"; do kill "$p" 2>/dev/null || true; done
  for p in "$@"; do
    n=0
    while [ -d "/proc/$p" ] && ! grep -q '^State:.Z' "/proc/$p/status" 2>/dev/null; do
      n=$((n + 1)); [ $n -ne 500 ] || kill -9 "$p" 2>/dev/null || true
      sleep 0.02
    done
  done
}

stop() {
  for t in $(timeout 20 $ctr tasks ls -q 2>/dev/null); do timeout 20 $ctr tasks delete --force "$t" >/dev/null 2>&1 || true; done
  end $(ours containerd)
  # Shims whose runtime could not be asked; their containers end below, with their cgroups.
  end $(ours containerd-shim)
  for c in /sys/fs/cgroup/*/pintle-kubelet-test /sys/fs/cgroup/pintle-kubelet-test; do
    [ -d "$c" ] || continue
    end $(find "$c" -name cgroup.procs -exec cat {} + 2>/dev/null)
    find "$c" -depth -type d -exec rmdir {} +
  done
  grep -o " $D[^ ]*" /proc/self/mountinfo | sort -ru | while read -r m; do umount -l "$m" || true; done
  nft delete table inet pintle_kubelet_test 2>/dev/null || true
  # A task that is deleted by force tells no network plugin.
  rm -f /var/lib/cni/results/pintlekt-*
  rm -rf "$D"
}

case $1 in
start)
  stop
  mkdir -p "$D/cni"
  cat > "$D/config.toml" <<CONF
version = 2
root = "$D/root"
state = "$D/state"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs","io.containerd.snapshotter.v1.btrfs","io.containerd.snapshotter.v1.zfs","io.containerd.snapshotter.v1.devmapper"]
[grpc]
  address = "$D/c.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "$D/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "pintle.test/pause:1"
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$D/cni"
CONF
  cat > "$D/cni/10.conflist" <<CONF
{"cniVersion":"0.4.0","name":"pintlekt","plugins":[{"type":"ptp","ipMasq":false,"ipam":{"type":"host-local","dataDir":"$D/ipam","ranges":[[{"subnet":"10.77.77.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}
CONF
  # A packet for a pod that is gone must not leave the machine.
  nft add table inet pintle_kubelet_test
  nft add chain inet pintle_kubelet_test out '{ type filter hook postrouting priority 0; policy accept; }'
  nft add rule inet pintle_kubelet_test out oifname eth0 ip daddr 10.77.77.0/24 drop
  setsid containerd -c "$D/config.toml" > "$D/containerd.log" 2>&1 &
  pid=$!
  until $ctr version > /dev/null 2>&1; do
    kill -0 $pid || { tail -5 "$D/containerd.log" >&2; exit 1; }
    sleep 0.02
  done
  image pintle.test/pause:1 /bin/sleep 1000000000
  image pintle.test/busybox:1 /bin/sh
  ;;
stop) stop ;;
esac
