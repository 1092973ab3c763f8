//! How long a kubelet's certificates are still good, under upstream's names: alerts look for them.

use jiff::Timestamp;
use pki::Facts;
use stdx::SharedClock;
use stdx::metrics::Registry;

/// Shows both on that registry's page. Each is asked for when the page is: when the certificate ends, or `None` where
/// there is none, which upstream shows as a time without end.
pub fn show(
    registry: &Registry,
    clock: &SharedClock,
    client: impl Fn() -> Option<Timestamp> + Send + Sync + 'static,
    server: impl Fn() -> Option<Timestamp> + Send + Sync + 'static,
) {
    const TEXT: &str = "is in seconds until certificate expiry (negative if already expired), or +Inf if the \
                        certificate is invalid or unused.";
    let name = "kubelet_certificate_manager_client_ttl_seconds";
    let of_client = registry.gauge(name, &format!("TTL of the Kubelet's client certificate. It {TEXT}"), &[]);
    let now = clock.clone();
    of_client.watch(&[], move || Some(left(client(), now.wall())));
    let name = "kubelet_certificate_manager_server_ttl_seconds";
    let of_server = registry.gauge(name, &format!("TTL of the Kubelet's serving certificate. It {TEXT}"), &[]);
    let now = clock.clone();
    of_server.watch(&[], move || Some(left(server(), now.wall())));
}

/// When a certificate ends.
pub fn end(der: &[u8]) -> Option<Timestamp> {
    Facts::of(der).ok().map(|facts| facts.not_after)
}

fn left(end: Option<Timestamp>, now: Timestamp) -> f64 {
    end.map_or(f64::INFINITY, |end| end.duration_since(now).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use pki::{Authority, Request};
    use stdx::clock::ManualClock;

    use super::*;

    #[test]
    fn what_is_left_is_told_and_what_is_over_and_what_is_not_there() {
        let begin: Timestamp = "2030-01-01T00:00:00Z".parse().expect("a time");
        let authority = Authority::generate("test", begin).expect("an authority");
        let issued = authority.issue(&Request::client("kubelet", "system:nodes"), begin).expect("issued");
        let leaf = issued.chain().expect("a chain").remove(0);
        let ends = end(&leaf).expect("a certificate");
        let manual = ManualClock::new(ends - Duration::from_secs(90));
        let (clock, registry): (SharedClock, Registry) = (Arc::new(manual.clone()), Registry::default());
        show(&registry, &clock, || None, move || end(&leaf));
        let page = registry.page();
        assert!(page.contains("\nkubelet_certificate_manager_client_ttl_seconds +Inf\n"), "{page}");
        assert!(page.contains("\nkubelet_certificate_manager_server_ttl_seconds 90\n"), "{page}");
        manual.advance(Duration::from_secs(100));
        assert!(registry.page().contains("\nkubelet_certificate_manager_server_ttl_seconds -10\n"));
        assert_eq!(end(b"nonsense"), None);
    }
}
