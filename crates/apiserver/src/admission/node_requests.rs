//! What a node may ask a certificate for: itself, and the pods that run on it; pure.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kinds::certificates::Request;
use machinery::meta;
use serde_json::Value;

use super::text;

const MIRROR: &str = "kubernetes.io/config.mirror";
/// Signers of certificates that make their holder a node.
const NODE_SIGNERS: &[&str] = &["kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet"];

/// A request for a node's certificate names the node that makes it.
pub fn judge(node: &str, request: &Value) -> Result<(), String> {
    if !NODE_SIGNERS.contains(&text(request, "/spec/signerName")) {
        return Ok(());
    }
    let pem = STANDARD.decode(text(request, "/spec/request")).unwrap_or_default();
    let parsed = Request::from_pem(&pem).map_err(|error| format!("unable to parse csr: {error}"))?;
    if parsed.common_name != format!("system:node:{node}") {
        return Err(format!("can only create a node CSR with CN=system:node:{node}"));
    }
    Ok(())
}

/// A request for a pod's certificate says the truth about a pod of the node that makes it.
pub fn judge_for_pod(
    node: &str,
    request: &Value,
    this: Option<&Value>,
    pod: Option<&Value>,
    account: Option<&Value>,
) -> Result<(), String> {
    let said = |field: &str| text(request, &format!("/spec/{field}"));
    if said("nodeName") != node {
        let other = said("nodeName");
        return Err(format!(
            "PodCertificateRequest.Spec.NodeName={other:?}, which is not the requesting node {node:?}"
        ));
    }
    let pod_name = format!("{}/{}", meta::namespace(request), said("podName"));
    let missing = |what: &str, name: &str| {
        format!("while retrieving {what} {name:?} named in the PodCertificateRequest: not found")
    };
    let this = this.ok_or_else(|| missing("node", node))?;
    let intro = format!("PodCertificateRequest for pod {pod_name:?}");
    if meta::uid(this) != said("nodeUID") {
        let (said, is) = (said("nodeUID"), meta::uid(this));
        return Err(format!("{intro} names node UID {said:?}, inconsistent with the running node ({is:?})"));
    }
    let pod = pod.ok_or_else(|| missing("pod", &pod_name))?;
    if meta::uid(pod) != said("podUID") {
        let (said, is) = (said("podUID"), meta::uid(pod));
        return Err(format!("{intro} contains pod UID ({said:?}) which differs from running pod {is:?}"));
    }
    if text(pod, "/spec/nodeName") != node {
        return Err(format!("pod {pod_name:?} is not running on node {node:?} named in the PodCertificateRequest"));
    }
    if meta::annotation(pod, MIRROR).is_some() {
        return Err(format!("pod {pod_name:?} is a mirror pod"));
    }
    let (name, runs_as) = (said("serviceAccountName"), text(pod, "/spec/serviceAccountName"));
    if name != runs_as {
        return Err(format!(
            "{intro} contains serviceAccountName ({name:?}) that differs from running pod ({runs_as:?})"
        ));
    }
    let account_name = format!("{}/{name}", meta::namespace(request));
    let account = account.ok_or_else(|| missing("service account", &account_name))?;
    if meta::uid(account) != said("serviceAccountUID") {
        let (said, is) = (said("serviceAccountUID"), meta::uid(account));
        return Err(format!(
            "{intro} names service account UID {said:?}, which differs from the running service account ({is:?})"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn other_signers_are_no_nodes_business() {
        assert_eq!(judge("n", &json!({"spec": {"signerName": "example.com/s"}})), Ok(()));
        let broken = json!({"spec": {"signerName": NODE_SIGNERS[0], "request": ""}});
        assert!(judge("n", &broken).unwrap_err().starts_with("unable to parse csr"));
    }

    #[test]
    fn a_node_asks_for_its_own_pods() {
        let object = |name: &str, uid: &str| json!({"metadata": {"name": name, "namespace": "ns", "uid": uid}});
        let (this, account) = (object("n", "nu"), object("s", "su"));
        let mut pod = object("p", "pu");
        pod["spec"] = json!({"nodeName": "n", "serviceAccountName": "s"});
        let good = json!({"metadata": {"namespace": "ns"}, "spec": {
            "nodeName": "n", "nodeUID": "nu", "podName": "p", "podUID": "pu",
            "serviceAccountName": "s", "serviceAccountUID": "su",
        }});
        let judge =
            |request: &Value, pod: Option<&Value>| judge_for_pod("n", request, Some(&this), pod, Some(&account));
        assert_eq!(judge(&good, Some(&pod)), Ok(()));
        for (field, value, want) in [
            ("nodeName", "m", "not the requesting node"),
            ("nodeUID", "x", "inconsistent with the running node"),
            ("podUID", "x", "differs from running pod"),
            ("serviceAccountName", "x", "that differs from running pod"),
            ("serviceAccountUID", "x", "differs from the running service account"),
        ] {
            let mut request = good.clone();
            request["spec"][field] = json!(value);
            let error = judge(&request, Some(&pod)).unwrap_err();
            assert!(error.contains(want), "{field}: {error}");
        }
        assert!(judge(&good, None).unwrap_err().contains("not found"));
        pod["spec"]["nodeName"] = json!("m");
        assert!(judge(&good, Some(&pod)).unwrap_err().contains("is not running on node"));
    }
}
