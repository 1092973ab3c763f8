//! How many events watches were sent, and how large they are, under upstream's names.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use stdx::metrics::hot::Hot;
use stdx::metrics::{Page, Type};

/// Resources that are told apart; what is beyond is counted under none.
const SERIES: usize = 1024;
/// As upstream cuts the sizes, in bytes.
const ENDS: [f64; 8] = [1024.0, 2048.0, 4096.0, 8192.0, 16_384.0, 32_768.0, 65_536.0, 131_072.0];

/// Group, version and resource.
type Key = [String; 3];

/// What is counted. Clones share it.
#[derive(Clone, Default)]
pub struct Watches(Arc<Mutex<BTreeMap<Key, Arc<Watched>>>>);

/// The same of one resource.
#[derive(Debug)]
pub struct Watched(Hot);

impl Watched {
    /// An event of so many bytes has gone out.
    pub fn sent(&self, bytes: usize) {
        self.0.observe(bytes as f64);
    }
}

impl Watches {
    /// Where events of that resource are counted: what is watched is served, so that its names are known.
    pub fn of(&self, group: &str, version: &str, resource: &str) -> Arc<Watched> {
        let mut key = [group, version, resource].map(str::to_owned);
        let mut watches = self.0.lock();
        if watches.len() >= SERIES && !watches.contains_key(&key) {
            key = Key::default();
        }
        watches.entry(key).or_insert_with(|| Arc::new(Watched(Hot::new(&ENDS)))).clone()
    }

    /// Writes both families.
    pub fn render(&self, page: &mut Page) {
        let watches: Vec<(Key, Arc<Watched>)> = self.0.lock().iter().map(|(k, w)| (k.clone(), w.clone())).collect();
        let labels = |key: &Key| {
            let [group, version, resource] = key.clone();
            [("group", group), ("version", version), ("resource", resource)]
        };
        let name = "apiserver_watch_events_sizes";
        page.family(name, Type::Histogram, "Watch event size distribution in bytes.");
        for (key, watched) in &watches {
            let labels = labels(key);
            watched.0.render(page, name, &labels.each_ref().map(|(label, value)| (*label, value.as_str())));
        }
        let name = "apiserver_watch_events_total";
        page.family(name, Type::Counter, "Number of events sent in watch clients.");
        for (key, watched) in &watches {
            let (labels, count) = (labels(key), watched.0.count());
            page.sample(name, &labels.each_ref().map(|(label, value)| (*label, value.as_str())), count as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_bounded_and_those_that_are_known_go_on() {
        let watches = Watches::default();
        watches.of("apps", "v1", "deployments").sent(3000);
        for n in 0..SERIES + 9 {
            watches.of("g", "v1", &n.to_string()).sent(1);
        }
        assert_eq!(watches.0.lock().len(), SERIES + 1);
        watches.of("apps", "v1", "deployments").sent(1);
        let mut page = Page::new();
        watches.render(&mut page);
        let text = page.finish();
        for wanted in [
            "apiserver_watch_events_total{group=\"apps\",version=\"v1\",resource=\"deployments\"} 2",
            "apiserver_watch_events_total{group=\"\",version=\"\",resource=\"\"} 10",
            "apiserver_watch_events_sizes_bucket{group=\"apps\",version=\"v1\",resource=\"deployments\",le=\"2048\"} 1",
        ] {
            assert!(text.lines().any(|line| line == wanted), "{wanted}");
        }
    }
}
