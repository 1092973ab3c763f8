//! A container's environment: in the order of its definition, so that `$(NAME)` sees what came
//! before. Pure: the objects it refers to are handed in.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::types::core::v1::{ConfigMap, Container, FileKeySelector, Secret};

use super::downward::{self, Place};
use super::env_file;
use super::expand::expand;
use super::service_links::{self, Service};
use crate::pod::BoundPod;

/// ConfigMaps and Secrets of the pod's namespace by name; what is not here does not exist.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    pub config_maps: BTreeMap<String, Arc<ConfigMap>>,
    pub secrets: BTreeMap<String, Arc<Secret>>,
}

/// Files of the pod's volumes by volume and path, as far as they are there and can be read.
pub type Files = BTreeMap<(String, String), Option<String>>;

/// What an environment is made of.
pub struct Inputs<'a> {
    pub pod: &'a BoundPod,
    pub container: &'a Container,
    pub objects: &'a Objects,
    pub files: &'a Files,
    pub services: &'a [Service],
    pub place: &'a Place,
}

/// An environment, and what of it had to be left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    pub variables: Vec<(String, String)>,
    /// Event texts for keys that are no names of variables.
    pub skipped: Vec<String>,
}

impl Environment {
    /// A variable's value.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    fn set(&mut self, name: String, value: String) {
        match self.variables.iter_mut().find(|(n, _)| *n == name) {
            Some(known) => known.1 = value,
            None => self.variables.push((name, value)),
        }
    }
}

/// Builds the environment; the error is the message of CreateContainerConfigError.
pub fn environment(inputs: &Inputs) -> Result<Environment, String> {
    let Inputs { pod, container, objects, files, services, place } = *inputs;
    let mut out = Environment::default();
    for source in container.env_from.iter().flatten() {
        let prefix = source.prefix.as_deref().unwrap_or_default();
        let (what, name, optional, entries) = if let Some(r) = &source.config_map_ref {
            let found = objects.config_maps.get(&r.name);
            ("configMap", &r.name, r.optional, found.map(|m| config_map_texts(m)))
        } else if let Some(r) = &source.secret_ref {
            let found = objects.secrets.get(&r.name);
            ("secret", &r.name, r.optional, found.map(|s| secret_texts(s)))
        } else {
            continue;
        };
        let Some(entries) = entries else {
            if optional == Some(true) {
                continue;
            }
            return Err(format!("{} \"{name}\" not found", what.to_ascii_lowercase()));
        };
        let mut bad = Vec::new();
        for (key, value) in entries {
            let variable = format!("{prefix}{key}");
            if is_variable_name(&variable) { out.set(variable, value) } else { bad.push(key) }
        }
        if !bad.is_empty() {
            out.skipped.push(format!(
                "Keys [{}] from the EnvFrom {what} {}/{name} were skipped since they are considered invalid \
                 environment variable names.",
                bad.join(", "),
                pod.namespace
            ));
        }
    }
    let links = service_links::variables(services, &pod.namespace, pod.spec().enable_service_links.unwrap_or(true));
    for variable in container.env.iter().flatten() {
        let value = match (&variable.value, &variable.value_from) {
            (Some(text), _) if !text.is_empty() => expand(text, |name| {
                out.get(name).or_else(|| links.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str()))
            }),
            (_, None) => String::new(),
            (_, Some(from)) => {
                if let Some(r) = &from.field_ref {
                    downward::field(pod, place, &r.field_path)?
                } else if let Some(r) = &from.resource_field_ref {
                    downward::resource(pod, place, r, Some(container))?
                } else if let Some(r) = &from.config_map_key_ref {
                    let found = objects.config_maps.get(&r.name);
                    let value = found.map(|m| config_map_texts(m).remove(&r.key));
                    match required(value, r.optional, ("configmap", "ConfigMap"), &r.name, &r.key, pod)? {
                        Some(value) => value,
                        None => continue,
                    }
                } else if let Some(r) = &from.secret_key_ref {
                    let found = objects.secrets.get(&r.name);
                    let value = found.map(|s| secret_texts(s).remove(&r.key));
                    match required(value, r.optional, ("secret", "Secret"), &r.name, &r.key, pod)? {
                        Some(value) => value,
                        None => continue,
                    }
                } else if let Some(r) = &from.file_key_ref {
                    match from_file(files, r)? {
                        Some(value) => value,
                        None => continue,
                    }
                } else {
                    return Err(format!("the source of variable {} is not supported by this kubelet", variable.name));
                }
            }
        };
        out.set(variable.name.clone(), value);
    }
    for (name, value) in links {
        if out.get(&name).is_none() {
            out.variables.push((name, value));
        }
    }
    Ok(out)
}

/// The value that a file has for a key, unless it need not have it.
fn from_file(files: &Files, source: &FileKeySelector) -> Result<Option<String>, String> {
    let FileKeySelector { key, path, volume_name, optional } = source;
    let Some(text) = files.get(&(volume_name.clone(), path.clone())) else {
        return Err(format!("cannot find the volume \"{volume_name}\" referenced by FileKeyRef"));
    };
    let value = match text {
        Some(text) => env_file::value(text, key).map_err(|_| "couldn't parse env file".to_owned())?,
        None if *optional == Some(true) => None,
        None => return Err("couldn't parse env file".to_owned()),
    };
    match value.filter(|v| !v.is_empty()) {
        None if *optional != Some(true) => {
            Err(format!("environment variable key \"{key}\" not found in file \"{path}\""))
        }
        value => Ok(value),
    }
}

/// `found`: no object, or an object with or without the key.
fn required(
    found: Option<Option<String>>,
    optional: Option<bool>,
    (lower, kind): (&str, &str),
    name: &str,
    key: &str,
    pod: &BoundPod,
) -> Result<Option<String>, String> {
    match found {
        Some(Some(value)) => Ok(Some(value)),
        _ if optional == Some(true) => Ok(None),
        None => Err(format!("{lower} \"{name}\" not found")),
        Some(None) => Err(format!("couldn't find key {key} in {kind} {}/{name}", pod.namespace)),
    }
}

fn config_map_texts(map: &ConfigMap) -> BTreeMap<String, String> {
    map.data.clone().unwrap_or_default()
}

fn secret_texts(secret: &Secret) -> BTreeMap<String, String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    secret.data.iter().flatten().map(|(k, v)| (k.clone(), text(&v.0))).collect()
}

/// Printable ASCII without `=`: what a process can have as a variable's name.
fn is_variable_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| (0x20..0x7f).contains(&b) && b != b'=')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;
    use serde_json::{Value, json};

    fn objects() -> Objects {
        let map = |value: Value| serde_json::from_value::<ConfigMap>(value).expect("a ConfigMap");
        let secret = |value: Value| serde_json::from_value::<Secret>(value).expect("a Secret");
        Objects {
            config_maps: [("cm".to_owned(), Arc::new(map(json!({"data": {"A": "1", "b=d": "x"}}))))].into(),
            secrets: [("s".to_owned(), Arc::new(secret(json!({"data": {"P": "cHc="}}))))].into(),
        }
    }

    fn check(container: Value, want: Result<&[&str], &str>) {
        let mut container = container;
        container["name"] = json!("c");
        let pod = pod(json!({"spec": {"enableServiceLinks": false, "containers": [container]}}));
        let got = environment(&Inputs {
            pod: &pod,
            container: &pod.containers()[0],
            objects: &objects(),
            files: &files(),
            services: &[],
            place: &Place { pod_ips: vec!["10.0.0.2".into()], ..Place::default() },
        });
        let got = got.map(|e| e.variables.into_iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>());
        assert_eq!(
            got.as_deref().map_err(String::as_str),
            want.map(|w| w.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>()).as_deref().map_err(|e| *e)
        );
    }

    #[test]
    fn values_see_what_came_before() {
        check(
            json!({"env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "$(X)$(Z)"}, {"name": "Z", "value": "2"},
                           {"name": "X", "value": "3"}, {"name": "E"}]}),
            Ok(&["X=3", "Y=1$(Z)", "Z=2", "E="]),
        );
    }

    #[test]
    fn objects_fill_variables() {
        check(
            json!({"envFrom": [{"prefix": "p_", "configMapRef": {"name": "cm"}}, {"secretRef": {"name": "s"}},
                               {"configMapRef": {"name": "none", "optional": true}}],
                   "env": [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "s", "key": "P"}}},
                           {"name": "O", "valueFrom": {"secretKeyRef": {"name": "s", "key": "none", "optional": true}}},
                           {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]}),
            Ok(&["p_A=1", "P=pw", "K=pw", "IP=10.0.0.2"]),
        );
    }

    fn files() -> Files {
        let file = |path: &str, text: Option<&str>| (("v".to_owned(), path.to_owned()), text.map(str::to_owned));
        [file("a", Some("K='one'\n")), file("bad", Some("K=one\n")), file("none", None)].into()
    }

    #[test]
    fn files_fill_variables() {
        let of = |path: &str, key: &str, optional: bool| {
            json!({"env": [{"name": "X", "valueFrom": {"fileKeyRef":
                {"volumeName": "v", "path": path, "key": key, "optional": optional}}}]})
        };
        check(of("a", "K", false), Ok(&["X=one"]));
        check(of("a", "L", true), Ok(&[]));
        check(of("none", "K", true), Ok(&[]));
        check(of("a", "L", false), Err("environment variable key \"L\" not found in file \"a\""));
        check(of("none", "K", false), Err("couldn't parse env file"));
        check(of("bad", "K", true), Err("couldn't parse env file"));
        let elsewhere = json!({"env": [{"name": "X", "valueFrom": {"fileKeyRef":
            {"volumeName": "w", "path": "a", "key": "K"}}}]});
        check(elsewhere, Err("cannot find the volume \"w\" referenced by FileKeyRef"));
    }

    #[test]
    fn what_is_missing_is_named() {
        let key = |name: &str, key: &str| json!({"env": [{"name": "K", "valueFrom": {"configMapKeyRef": {"name": name, "key": key}}}]});
        check(key("none", "A"), Err("configmap \"none\" not found"));
        check(key("cm", "none"), Err("couldn't find key none in ConfigMap default/cm"));
        check(json!({"envFrom": [{"secretRef": {"name": "none"}}]}), Err("secret \"none\" not found"));
    }

    #[test]
    fn keys_that_are_no_names_are_reported() {
        let pod = pod(json!({"spec": {"containers": [{"name": "c", "envFrom": [{"configMapRef": {"name": "cm"}}]}]}}));
        let place = Place::default();
        let (objects, container) = (objects(), &pod.containers()[0]);
        let files = Files::new();
        let inputs = Inputs { pod: &pod, container, objects: &objects, files: &files, services: &[], place: &place };
        assert_eq!(
            environment(&inputs).map(|e| e.skipped),
            Ok(vec![
                "Keys [b=d] from the EnvFrom configMap default/cm were skipped since they are considered invalid \
             environment variable names."
                    .to_owned()
            ])
        );
    }
}
