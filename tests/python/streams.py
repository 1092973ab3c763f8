"""Uses the Python client's helpers for streams: `stream` and `portforward`, which speak v4.channel.k8s.io.

    streams.py KUBECONFIG

crates/e2e/tests/pods/streams.rs runs it on a cluster with the pods `box` (a shell) and `web` (nginx).
"""

import sys

from kubernetes import client, config
from kubernetes.stream import portforward, stream

NAMESPACE = "default"


def equal(what, got, want):
    if got != want:
        raise AssertionError(f"{what}: got {got!r}, want {want!r}")


def run(core, command, **more):
    wanted = {"stderr": True, "stdin": False, "stdout": True, "tty": False, **more}
    return stream(core.connect_get_namespaced_pod_exec, "box", NAMESPACE, command=command, **wanted)


def commands(core):
    """A command's output, and how it ended."""
    equal("output", run(core, ["sh", "-c", "echo out; echo err >&2"]), "out\nerr\n")
    process = run(core, ["sh", "-c", "read line; echo got $line; exit 7"], stdin=True, _preload_content=False)
    process.write_stdin("this\n")
    process.run_forever(timeout=30)
    equal("stdout", process.read_stdout(), "got this\n")
    equal("returncode", process.returncode, 7)


def ports(core):
    """Connections to a port that somebody listens on, and to one that nobody does."""
    forward = portforward(core.connect_get_namespaced_pod_portforward, "web", NAMESPACE, ports="80,81")
    connection = forward.socket(80)
    connection.setblocking(True)
    connection.sendall(b"GET / HTTP/1.0\r\nHost: web\r\n\r\n")
    answer = b""
    while piece := connection.recv(4096):
        answer += piece
    connection.close()
    if not answer.startswith(b"HTTP/1.1 200 ") or b"</html>" not in answer:
        raise AssertionError(f"no page: {answer!r}")
    equal("error of 80", forward.error(80), None)


def main():
    config.load_kube_config(sys.argv[1])
    core = client.CoreV1Api()
    commands(core)
    ports(core)
    print("ok")


main()
