"""Uses a Pintle API server the way programs written with the Python client do.

    client.py list
    client.py KUBECONFIG CHECK

crates/e2e/tests/python.rs runs the checks one by one, each on a fresh server.
"""

import base64
import datetime
import json
import sys
import threading
import time

import kubernetes
import yaml
from kubernetes import client, config, dynamic, utils, watch
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.exceptions import ConflictError, NotFoundError
from kubernetes.informer import SharedInformer

NAMESPACE = "default"
PATIENCE = 30


def equal(what, got, want):
    if got != want:
        raise AssertionError(f"{what}: got {got!r}, want {want!r}")


def refused(call, code, reason, message=None):
    """The Status of a call that must fail."""
    try:
        call()
    except ApiException as error:
        status = json.loads(error.body)
        equal("code", (error.status, status["code"]), (code, code))
        equal("kind", (status["kind"], status["apiVersion"], status["status"]), ("Status", "v1", "Failure"))
        equal("reason", status["reason"], reason)
        if message is not None:
            equal("message", status["message"], message)
        return status
    raise AssertionError(f"{reason} was expected")


def until(what, ask):
    """Asks until the answer is true."""
    deadline = time.monotonic() + PATIENCE
    while True:
        answer = ask()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: still {answer!r}")
        time.sleep(0.02)


def config_map(name, data=None, labels=None):
    return client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name, labels=labels), data=data)


def pod(name):
    container = client.V1Container(
        name="main",
        image="example.invalid/app:1",
        resources=client.V1ResourceRequirements(requests={"cpu": "0.1", "memory": "1.5Gi"}),
        ports=[client.V1ContainerPort(container_port=80, name="http")],
        readiness_probe=client.V1Probe(http_get=client.V1HTTPGetAction(path="/", port="http")),
    )
    spec = client.V1PodSpec(containers=[container], scheduler_name="nobody")
    return client.V1Pod(metadata=client.V1ObjectMeta(name=name, labels={"app": name}), spec=spec)


def ready(core):
    """Waits for the ServiceAccount that pods need."""
    until("the default ServiceAccount", lambda: core.list_namespaced_service_account(
        NAMESPACE, field_selector="metadata.name=default").items)


def typed(api):
    """Creates, reads, lists, changes and deletes through generated classes."""
    core, apps = client.CoreV1Api(api), client.AppsV1Api(api)
    ready(core)
    made = core.create_namespaced_config_map(NAMESPACE, config_map("a", {"k": "v"}), field_manager="python")
    equal("data", made.data, {"k": "v"})
    equal("a time", type(made.metadata.creation_timestamp), datetime.datetime)
    equal("managers", [m.manager for m in made.metadata.managed_fields], ["python"])
    made.data = {"k": "w"}
    replaced = core.replace_namespaced_config_map("a", NAMESPACE, made)
    equal("replaced", replaced.data, {"k": "w"})
    refused(lambda: core.replace_namespaced_config_map("a", NAMESPACE, made), 409, "Conflict",
            'Operation cannot be fulfilled on configmaps "a": the object has been modified; '
            "please apply your changes to the latest version and try again")

    created = core.create_namespaced_pod(NAMESPACE, pod("p"))
    equal("requests", created.spec.containers[0].resources.requests, {"cpu": "100m", "memory": "1536Mi"})
    equal("a default", created.spec.restart_policy, "Always")
    equal("a name for a port", created.spec.containers[0].readiness_probe.http_get.port, "http")
    status = core.patch_namespaced_pod_status("p", NAMESPACE, {"status": {"phase": "Running"}})
    equal("the phase", status.status.phase, "Running")

    labels = {"app": "web"}
    template = client.V1PodTemplateSpec(
        metadata=client.V1ObjectMeta(labels=labels),
        spec=client.V1PodSpec(containers=[client.V1Container(name="main", image="example.invalid/app:1")]))
    web = client.V1Deployment(
        metadata=client.V1ObjectMeta(name="web"),
        spec=client.V1DeploymentSpec(replicas=1, selector=client.V1LabelSelector(match_labels=labels), template=template))
    apps.create_namespaced_deployment(NAMESPACE, web)
    scale = apps.read_namespaced_deployment_scale("web", NAMESPACE)
    equal("the scale", (scale.spec.replicas, scale.status.selector), (1, "app=web"))
    apps.patch_namespaced_deployment_scale("web", NAMESPACE, {"spec": {"replicas": 2}})
    until("two pods", lambda: len(core.list_namespaced_pod(NAMESPACE, label_selector="app=web").items) == 2)
    # A list of operations is a JSON patch; a tree is a strategic merge patch.
    patched = apps.patch_namespaced_deployment(
        "web", NAMESPACE, [{"op": "replace", "path": "/spec/replicas", "value": 0}])
    equal("replicas", patched.spec.replicas, 0)
    sidecar = {"spec": {"template": {"spec": {"containers": [{"name": "side", "image": "example.invalid/side:1"}]}}}}
    patched = apps.patch_namespaced_deployment("web", NAMESPACE, sidecar)
    equal("containers", sorted(c.name for c in patched.spec.template.spec.containers), ["main", "side"])
    apps.delete_namespaced_deployment("web", NAMESPACE, propagation_policy="Foreground")
    until("the Deployment is gone", lambda: not apps.list_namespaced_deployment(NAMESPACE).items)

    secret = client.V1Secret(metadata=client.V1ObjectMeta(name="s"), string_data={"word": "ü"})
    kept = core.create_namespaced_secret(NAMESPACE, secret)
    equal("secret", base64.b64decode(kept.data["word"]).decode(), "ü")
    equal("its type", kept.type, "Opaque")

    event = client.EventsV1Event(
        metadata=client.V1ObjectMeta(generate_name="told-"), action="Looking", reason="Seen", type="Normal",
        reporting_controller="python.invalid/test", reporting_instance="one",
        event_time=datetime.datetime.now(datetime.timezone.utc),
        regarding=client.V1ObjectReference(kind="Pod", name="p", namespace=NAMESPACE))
    told = client.EventsV1Api(api).create_namespaced_event(NAMESPACE, event)
    equal("microseconds are kept", told.event_time, event.event_time)

    gone = core.delete_namespaced_config_map("a", NAMESPACE)
    equal("deleted", gone["status"], "Success")


def lists(api):
    """Reads page by page, selects, and deletes what was selected."""
    core = client.CoreV1Api(api)
    for n in range(7):
        core.create_namespaced_config_map(NAMESPACE, config_map(f"m{n}", labels={"n": str(n), "of": "lists"}))
    names, token = [], None
    while True:
        page = core.list_namespaced_config_map(NAMESPACE, limit=3, _continue=token, label_selector="of=lists")
        names += [item.metadata.name for item in page.items]
        token = page.metadata._continue
        if not token:
            break
    equal("names", names, [f"m{n}" for n in range(7)])
    chosen = core.list_config_map_for_all_namespaces(label_selector="of=lists,n notin (1,2),n!=3")
    equal("chosen", [item.metadata.labels["n"] for item in chosen.items], ["0", "4", "5", "6"])
    core.delete_collection_namespaced_config_map(NAMESPACE, label_selector="n in (0,1)")
    left = core.list_namespaced_config_map(NAMESPACE, label_selector="of=lists")
    equal("left", [item.metadata.name for item in left.items], [f"m{n}" for n in range(2, 7)])
    exact = core.list_namespaced_config_map(
        NAMESPACE, label_selector="of=lists", resource_version=chosen.metadata.resource_version,
        resource_version_match="Exact")
    equal("as it was", len(exact.items), 7)


def watches(api):
    """Follows changes; a watch that the server ends goes on where it was."""
    core = client.CoreV1Api(api)
    begin = core.list_namespaced_config_map(NAMESPACE, limit=1).metadata.resource_version
    seen, stop = [], threading.Event()

    def follow():
        stream = watch.Watch().stream(
            core.list_namespaced_config_map, NAMESPACE, resource_version=begin, label_selector="of=watch",
            timeout_seconds=PATIENCE, allow_watch_bookmarks=True)
        for event in stream:
            if event["type"] == "BOOKMARK":
                continue
            equal("the object", type(event["object"]), client.V1ConfigMap)
            seen.append((event["type"], event["object"].metadata.name, event["object"].data["n"]))
            if event["type"] == "DELETED":
                break
        stop.set()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    core.create_namespaced_config_map(NAMESPACE, config_map("w", {"n": "1"}, {"of": "watch"}))
    for n in (2, 3):
        core.patch_namespaced_config_map("w", NAMESPACE, {"data": {"n": str(n)}})
    core.patch_namespaced_config_map("w", NAMESPACE, {"metadata": {"labels": {"of": None}}})
    if not stop.wait(PATIENCE):
        raise AssertionError(f"the watch gave {seen}")
    equal("events", seen, [("ADDED", "w", "1"), ("MODIFIED", "w", "2"), ("MODIFIED", "w", "3"), ("DELETED", "w", "3")])
    ended = list(watch.Watch().stream(core.list_namespaced_config_map, NAMESPACE, timeout_seconds=1))
    equal("what exists comes first", {e["type"] for e in ended}, {"ADDED"})
    refused(lambda: list(watch.Watch().stream(
        core.list_namespaced_config_map, NAMESPACE, resource_version="nonsense", timeout_seconds=1)), 400, "BadRequest")


def dynamics(api):
    """Applies and patches what it knows from discovery only."""
    found = dynamic.DynamicClient(api)
    deployments = found.resources.get(api_version="apps/v1", kind="Deployment")
    equal("the resource", (deployments.name, deployments.namespaced), ("deployments", True))
    body = {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "main", "image": "example.invalid/app:1"}]},
            },
        },
    }
    applied = deployments.server_side_apply(body=body, name="web", namespace=NAMESPACE, field_manager="python")
    equal("the manager", [(m.manager, m.operation) for m in applied.metadata.managedFields
                          if m.operation == "Apply"], [("python", "Apply")])
    body["spec"]["template"]["spec"]["containers"][0]["image"] = "example.invalid/app:2"
    try:
        deployments.server_side_apply(body=body, name="web", namespace=NAMESPACE, field_manager="other")
        raise AssertionError("a conflict was expected")
    except ConflictError as error:
        status = json.loads(error.body)
        field = '.spec.template.spec.containers[name="main"].image'
        equal("message", status["message"], f'Apply failed with 1 conflict: conflict with "python": {field}')
        equal("causes", status["details"]["causes"],
              [{"reason": "FieldManagerConflict", "message": 'conflict with "python"', "field": field}])
    forced = deployments.server_side_apply(
        body=body, name="web", namespace=NAMESPACE, field_manager="other", force_conflicts=True)
    equal("the image", forced.spec.template.spec.containers[0].image, "example.invalid/app:2")
    patched = deployments.patch(
        body={"metadata": {"annotations": {"a": "1"}}}, name="web", namespace=NAMESPACE,
        content_type="application/merge-patch+json")
    equal("the annotation", patched.metadata.annotations.a, "1")
    equal("all", [item.metadata.name for item in deployments.get().items], ["web"])
    scale = deployments.scale.get(name="web", namespace=NAMESPACE)
    equal("the scale", (scale.kind, scale.spec.replicas), ("Scale", 1))
    maps = found.resources.get(api_version="v1", kind="ConfigMap")
    maps.create(body={"metadata": {"name": "seen"}, "data": {"k": "v"}}, namespace=NAMESPACE)
    for event in maps.watch(namespace=NAMESPACE, field_selector="metadata.name=seen", timeout=PATIENCE):
        equal("the event", (event["type"], event["object"].data.k), ("ADDED", "v"))
        break
    maps.delete(name="seen", namespace=NAMESPACE)
    try:
        maps.get(name="seen", namespace=NAMESPACE)
        raise AssertionError("it is gone")
    except NotFoundError as error:
        equal("message", json.loads(error.body)["message"], 'configmaps "seen" not found')
    groups = {resource.group_version for resource in found.resources.search()}
    equal("groups that exist", {"v1", "apps/v1", "rbac.authorization.k8s.io/v1"} - groups, set())


def errors(api):
    """What fails says why."""
    core = client.CoreV1Api(api)
    ready(core)
    core.create_namespaced_config_map(NAMESPACE, config_map("one"))
    status = refused(lambda: core.create_namespaced_config_map(NAMESPACE, config_map("one")), 409, "AlreadyExists",
                     'configmaps "one" already exists')
    equal("details", status["details"], {"name": "one", "kind": "configmaps"})
    status = refused(lambda: core.read_namespaced_config_map("two", NAMESPACE), 404, "NotFound",
                     'configmaps "two" not found')
    equal("details", status["details"], {"name": "two", "kind": "configmaps"})
    refused(lambda: core.create_namespaced_config_map("nowhere", config_map("one")), 404, "NotFound",
            'namespaces "nowhere" not found')
    empty = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": []}}
    status = refused(lambda: core.create_namespaced_pod(NAMESPACE, empty), 422, "Invalid",
                     'Pod "p" is invalid: spec.containers: Required value')
    equal("causes", status["details"]["causes"],
          [{"reason": "FieldValueRequired", "message": "Required value", "field": "spec.containers"}])
    # The generated classes would not let a typo through.
    typo = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "typo"}, "dota": {}}
    maps = dynamic.DynamicClient(api).resources.get(api_version="v1", kind="ConfigMap")
    refused(lambda: maps.create(body=typo, namespace=NAMESPACE, query_params=[("fieldValidation", "Strict")]), 400, "BadRequest",
            'ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: unknown field "dota"')
    core.create_namespaced_config_map(NAMESPACE, config_map("dry"), dry_run="All")
    refused(lambda: core.read_namespaced_config_map("dry", NAMESPACE), 404, "NotFound")
    refused(lambda: core.delete_namespaced_config_map(
        "one", NAMESPACE, body=client.V1DeleteOptions(preconditions=client.V1Preconditions(uid="other"))),
        409, "Conflict")
    equal("the version", client.VersionApi(api).get_code().minor, "37")
    review = client.V1SelfSubjectAccessReview(spec=client.V1SelfSubjectAccessReviewSpec(
        resource_attributes=client.V1ResourceAttributes(verb="get", resource="pods", namespace=NAMESPACE)))
    answer = client.AuthorizationV1Api(api).create_self_subject_access_review(review)
    equal("an administrator may", answer.status.allowed, True)


def informers(api):
    """Keeps a cache in step, from YAML to the last delete."""
    core = client.CoreV1Api(api)
    seen = []
    informer = SharedInformer(core.list_namespaced_config_map, NAMESPACE, label_selector="of=informer")
    for kind in ("ADDED", "MODIFIED", "DELETED"):
        informer.add_event_handler(kind, lambda item, kind=kind: seen.append((kind, item.metadata.name)))
    core.create_namespaced_config_map(NAMESPACE, config_map("before", {"n": "0"}, {"of": "informer"}))
    informer.start()
    until("what exists", lambda: ("ADDED", "before") in seen)
    manifest = """
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: ConfigMap, metadata: {name: after, labels: {of: informer}}, data: {yes: 'on'}}
- {apiVersion: v1, kind: Service, metadata: {name: web}, spec: {ports: [{port: 80}], selector: {app: web}}}
"""
    for document in yaml.safe_load_all(manifest):
        # YAML 1.1 reads a bare yes as a boolean; written as JSON it is a key again.
        utils.create_from_dict(api, json.loads(json.dumps(document)), namespace=NAMESPACE)
    core.patch_namespaced_config_map("after", NAMESPACE, {"data": {"n": "1"}})
    core.delete_namespaced_config_map("before", NAMESPACE)
    until("the events", lambda: seen == [
        ("ADDED", "before"), ("ADDED", "after"), ("MODIFIED", "after"), ("DELETED", "before")])
    cached = {item.metadata.name: item.data for item in informer.cache.list()}
    equal("the cache", cached, {"after": {"true": "on", "n": "1"}})
    informer.stop()


CHECKS = {"informer": informers, "typed": typed, "lists": lists, "watches": watches, "dynamic": dynamics, "errors": errors}


def main(arguments):
    if arguments == ["list"]:
        print("\n".join(sorted(CHECKS)))
        return
    path, name = arguments
    config.load_kube_config(path)
    with client.ApiClient() as api:
        CHECKS[name](api)
    print("ok", name, "with", kubernetes.__version__)


if __name__ == "__main__":
    main(sys.argv[1:])
