//! What a pod may ask for and this kubelet cannot do. Nothing of it is passed over in silence: each
//! answer here fails the step that would need it, with that step's event, and shows as a Wait. Pure.

use crate::pod::BoundPod;

/// Why the pod's devices cannot be prepared: the message of `FailedPrepareDynamicResources`.
pub fn claims(pod: &BoundPod) -> Option<String> {
    let names: Vec<&str> = pod.spec().resource_claims.iter().flatten().map(|c| c.name.as_str()).collect();
    (!names.is_empty())
        .then(|| format!("resource claims are not supported by this kubelet: the pod asks for {}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;
    use serde_json::{Value, json};

    fn with(spec: Value) -> std::sync::Arc<BoundPod> {
        let mut spec = spec;
        spec["containers"] = json!([{"name": "c", "image": "i"}]);
        pod(json!({"spec": spec}))
    }

    #[test]
    fn what_devices_need() {
        assert_eq!(claims(&with(json!({}))), None);
        let spec = json!({"resourceClaims": [{"name": "gpu", "resourceClaimName": "one"}, {"name": "nic"}]});
        let want = "resource claims are not supported by this kubelet: the pod asks for gpu, nic";
        assert_eq!(claims(&with(spec)).as_deref(), Some(want));
    }
}
