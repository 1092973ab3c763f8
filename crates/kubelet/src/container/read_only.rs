//! Mounts whose submounts are to be read-only, too. Pure.

use api::types::core::v1::VolumeMount;

/// True for a mount whose answer depends on what the runtime can do.
pub fn asks(mount: &VolumeMount) -> bool {
    matches!(mount.recursive_read_only.as_deref(), Some(mode) if mode != "Disabled")
}

/// Whether the mount is made read-only with all beneath it; `supported`: the runtime can do that.
pub fn recursive(mount: &VolumeMount, supported: bool) -> Result<bool, String> {
    let name = &mount.name;
    let mode = mount.recursive_read_only.as_deref().unwrap_or("Disabled");
    if mode == "Disabled" {
        return Ok(false);
    }
    let but = |what: &str| Err(format!("volume \"{name}\" requested recursive read-only mode, but it is not {what}"));
    if mount.read_only != Some(true) {
        return but("read-only");
    }
    if let Some(other) = mount.mount_propagation.as_deref().filter(|p| *p != "None") {
        return but(&format!("compatible with propagation \"{other}\""));
    }
    match mode {
        "IfPossible" => Ok(supported),
        "Enabled" if supported => Ok(true),
        "Enabled" => but("supported by the runtime"),
        other => Err(format!("unknown recursive read-only mode \"{other}\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn modes() {
        let check = |mount: Value, supported: bool, want: Result<bool, &str>| {
            let mut value = mount.clone();
            (value["name"], value["mountPath"]) = (json!("v"), json!("/v"));
            let found = recursive(&serde_json::from_value(value).expect("a mount"), supported);
            assert_eq!(found, want.map_err(str::to_owned), "{mount}");
        };
        let with = |mode: &str| json!({"readOnly": true, "recursiveReadOnly": mode});
        check(json!({"readOnly": true}), true, Ok(false));
        check(with("Disabled"), true, Ok(false));
        check(with("IfPossible"), true, Ok(true));
        check(with("IfPossible"), false, Ok(false));
        check(with("Enabled"), true, Ok(true));
        let but = "volume \"v\" requested recursive read-only mode, but it is not";
        check(with("Enabled"), false, Err(&format!("{but} supported by the runtime")));
        check(json!({"recursiveReadOnly": "Enabled"}), true, Err(&format!("{but} read-only")));
        let mut shared = with("IfPossible");
        shared["mountPropagation"] = json!("HostToContainer");
        check(shared.clone(), true, Err(&format!("{but} compatible with propagation \"HostToContainer\"")));
        shared["mountPropagation"] = json!("None");
        check(shared, true, Ok(true));
        check(with("Perhaps"), true, Err("unknown recursive read-only mode \"Perhaps\""));
    }
}
