//! The variables by which a container finds Services without DNS. Pure.

/// A Service with an address, as far as variables show it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Service {
    pub namespace: String,
    pub name: String,
    pub cluster_ip: String,
    /// Name, protocol, number.
    pub ports: Vec<(String, String, i32)>,
}

/// The variables for a pod in `namespace`: those of its own namespace when it wants links, and
/// always those of the API server's Service.
pub fn variables(services: &[Service], namespace: &str, links: bool) -> Vec<(String, String)> {
    let is_master = |s: &Service| s.namespace == "default" && s.name == "kubernetes";
    let mut chosen: Vec<&Service> = services
        .iter()
        .filter(|s| !matches!(s.cluster_ip.as_str(), "" | "None"))
        .filter(|s| (links && s.namespace == namespace) || is_master(s))
        .collect();
    // A Service of the pod's own namespace wins over the API server's of the same name.
    chosen.sort_by_key(|s| (s.namespace == namespace, s.name.clone()));
    let mut out: Vec<(String, String)> = Vec::new();
    for service in chosen {
        for (name, value) in of(service) {
            match out.iter_mut().find(|(n, _)| *n == name) {
                Some(known) => known.1 = value,
                None => out.push((name, value)),
            }
        }
    }
    out
}

fn shout(name: &str) -> String {
    name.to_ascii_uppercase().replace('-', "_")
}

fn of(service: &Service) -> Vec<(String, String)> {
    let Some((_, first_protocol, first)) = service.ports.first() else { return Vec::new() };
    let (name, ip) = (shout(&service.name), &service.cluster_ip);
    let host = if ip.contains(':') { format!("[{ip}]") } else { ip.clone() };
    let url = |protocol: &str, port: i32| format!("{}://{host}:{port}", protocol.to_ascii_lowercase());
    let mut out =
        vec![(format!("{name}_SERVICE_HOST"), ip.clone()), (format!("{name}_SERVICE_PORT"), first.to_string())];
    for (port_name, _, port) in service.ports.iter().filter(|(n, ..)| !n.is_empty()) {
        out.push((format!("{name}_SERVICE_PORT_{}", shout(port_name)), port.to_string()));
    }
    out.push((format!("{name}_PORT"), url(first_protocol, *first)));
    for (_, protocol, port) in &service.ports {
        let prefix = format!("{name}_PORT_{port}_{}", protocol.to_ascii_uppercase());
        out.push((prefix.clone(), url(protocol, *port)));
        out.push((format!("{prefix}_PROTO"), protocol.to_ascii_lowercase()));
        out.push((format!("{prefix}_PORT"), port.to_string()));
        out.push((format!("{prefix}_ADDR"), ip.clone()));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(namespace: &str, name: &str, ip: &str) -> Service {
        let ports = vec![("http-x".into(), "TCP".into(), 80), (String::new(), "UDP".into(), 53)];
        Service { namespace: namespace.into(), name: name.into(), cluster_ip: ip.into(), ports }
    }

    #[test]
    fn variables_of_one_service() {
        let text: Vec<String> = variables(&[service("a", "my-web", "10.96.0.5")], "a", true)
            .into_iter()
            .map(|(k, v)| format!("{k}={v}"))
            .collect();
        assert_eq!(
            text,
            [
                "MY_WEB_SERVICE_HOST=10.96.0.5",
                "MY_WEB_SERVICE_PORT=80",
                "MY_WEB_SERVICE_PORT_HTTP_X=80",
                "MY_WEB_PORT=tcp://10.96.0.5:80",
                "MY_WEB_PORT_80_TCP=tcp://10.96.0.5:80",
                "MY_WEB_PORT_80_TCP_PROTO=tcp",
                "MY_WEB_PORT_80_TCP_PORT=80",
                "MY_WEB_PORT_80_TCP_ADDR=10.96.0.5",
                "MY_WEB_PORT_53_UDP=udp://10.96.0.5:53",
                "MY_WEB_PORT_53_UDP_PROTO=udp",
                "MY_WEB_PORT_53_UDP_PORT=53",
                "MY_WEB_PORT_53_UDP_ADDR=10.96.0.5",
            ]
        );
    }

    #[test]
    fn the_api_servers_service_is_always_there() {
        let all = [
            service("default", "kubernetes", "10.96.0.1"),
            service("a", "web", "10.96.0.5"),
            service("b", "web", "10.96.0.6"),
            service("a", "headless", "None"),
        ];
        let hosts = |namespace, links| -> Vec<String> {
            let found = variables(&all, namespace, links).into_iter();
            found.filter(|(k, _)| k.ends_with("_SERVICE_HOST")).map(|(k, v)| format!("{k}={v}")).collect()
        };
        assert_eq!(hosts("a", false), ["KUBERNETES_SERVICE_HOST=10.96.0.1"]);
        assert_eq!(hosts("a", true), ["KUBERNETES_SERVICE_HOST=10.96.0.1", "WEB_SERVICE_HOST=10.96.0.5"]);
    }
}
