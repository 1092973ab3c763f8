//! `/healthz`, `/livez`, `/readyz`: what is well, check by check; and `/metrics/slis`: how often it was.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::encode;
use crate::request::Query;

/// One check.
pub struct Check {
    pub name: &'static str,
    /// Only `/readyz` asks it: a server that is alive need not be ready.
    pub ready_only: bool,
    ok: Box<dyn Fn() -> bool + Send + Sync>,
}

impl Check {
    /// A check that asks `ok`.
    pub fn new(name: &'static str, ok: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { name, ready_only: false, ok: Box::new(ok) }
    }

    /// A check that is well once the flag is set.
    pub fn done(name: &'static str, flag: &Arc<AtomicBool>) -> Self {
        let flag = flag.clone();
        Self::new(name, move || flag.load(Ordering::Acquire))
    }

    /// The same for `/readyz` alone.
    #[must_use]
    pub fn ready_only(mut self) -> Self {
        self.ready_only = true;
        self
    }
}

/// What one check has answered at one endpoint, to those who asked for all checks.
#[derive(Clone, Copy, Default)]
struct Results {
    is_well: bool,
    error: u64,
    success: u64,
}

/// Every check, in the order they are printed.
#[derive(Default)]
pub struct Health {
    pub checks: Vec<Check>,
    /// By name and endpoint: as many as there are checks, three times.
    results: Mutex<BTreeMap<(&'static str, &'static str), Results>>,
}

impl Health {
    /// Of these checks.
    pub fn new(checks: Vec<Check>) -> Self {
        Self { checks, results: Mutex::default() }
    }

    /// Asks a check and remembers what it says.
    fn ask(&self, check: &Check, endpoint: &'static str) -> bool {
        let is_well = (check.ok)();
        let mut results = self.results.lock();
        let results = results.entry((check.name, endpoint)).or_default();
        results.is_well = is_well;
        *(if is_well { &mut results.success } else { &mut results.error }) += 1;
        is_well
    }

    /// Forgets what checks have answered.
    pub fn reset(&self) {
        self.results.lock().clear();
    }

    /// What checks have answered, in Prometheus' text form.
    pub fn indicators(&self) -> String {
        let results = self.results.lock();
        let mut out = String::new();
        let head = |out: &mut String, name: &str, kind: &str, help: &str| {
            let _ = writeln!(out, "# HELP {name} [STABLE] {help}\n# TYPE {name} {kind}");
        };
        if results.is_empty() {
            return out;
        }
        let name = "kubernetes_healthcheck";
        head(&mut out, name, "gauge", "This metric records the result of a single healthcheck.");
        for ((check, endpoint), results) in &*results {
            let _ = writeln!(out, "{name}{{name=\"{check}\",type=\"{endpoint}\"}} {}", u8::from(results.is_well));
        }
        let name = "kubernetes_healthchecks_total";
        head(&mut out, name, "counter", "This metric records the results of all healthcheck.");
        let mut lines: BTreeMap<[&str; 3], u64> = BTreeMap::new();
        for ((check, endpoint), results) in &*results {
            for (status, count) in [("error", results.error), ("success", results.success)] {
                lines.insert([check, status, endpoint], count);
            }
        }
        for ([check, status, endpoint], count) in lines.into_iter().filter(|(_, count)| *count > 0) {
            let _ = writeln!(out, "{name}{{name=\"{check}\",status=\"{status}\",type=\"{endpoint}\"}} {count}");
        }
        out
    }

    /// Answers a health path; `None` when it is none.
    pub fn respond(&self, path: &str, query: &Query) -> Option<transport::Response> {
        let trimmed = path.strip_prefix('/')?;
        let (endpoint, name) = trimmed.split_once('/').unwrap_or((trimmed, ""));
        let name = name.strip_suffix('/').unwrap_or(name);
        let endpoint = ["healthz", "livez", "readyz"].into_iter().find(|known| *known == endpoint)?;
        let asked: Vec<&Check> = self.checks.iter().filter(|c| endpoint == "readyz" || !c.ready_only).collect();
        if !name.is_empty() {
            let check = asked.iter().find(|c| c.name == name)?;
            let well = (check.ok)();
            return Some(if well {
                encode::text(200, "ok")
            } else {
                encode::text(500, "internal server error: reason withheld\n")
            });
        }
        let excluded = query.all("exclude");
        let (mut lines, mut failed) = (String::new(), false);
        for check in &asked {
            let name = check.name;
            if excluded.contains(&name) {
                lines.push_str(&format!("[+]{name} excluded: ok\n"));
            } else if self.ask(check, endpoint) {
                lines.push_str(&format!("[+]{name} ok\n"));
            } else {
                failed = true;
                lines.push_str(&format!("[-]{name} failed: reason withheld\n"));
            }
        }
        let unknown: Vec<String> =
            excluded.iter().filter(|e| !asked.iter().any(|c| c.name == **e)).map(|e| format!("{e:?}")).collect();
        if !unknown.is_empty() {
            let names = unknown.join(",");
            lines.push_str(&format!("warn: some health checks cannot be excluded: no matches for {names}\n"));
        }
        Some(if failed {
            encode::text(500, format!("{lines}{endpoint} check failed\n"))
        } else if query.get("verbose").is_some() {
            encode::text(200, format!("{lines}{endpoint} check passed\n"))
        } else {
            encode::text(200, "ok")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    async fn check(health: &Health, uri: &str) -> String {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let Some(response) = health.respond(path, &Query::parse(query)) else { return "none".into() };
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.expect("body").to_bytes();
        format!("{code} {}", String::from_utf8_lossy(&body))
    }

    #[tokio::test]
    async fn answers_have_upstreams_lines() {
        let started = Arc::new(AtomicBool::new(false));
        let checks = vec![
            Check::new("ping", || true),
            Check::done("poststarthook/x", &started),
            Check::new("shutdown", || true).ready_only(),
        ];
        let health = Health::new(checks);
        let failed = "500 [+]ping ok\n[-]poststarthook/x failed: reason withheld\nlivez check failed\n";
        assert_eq!(check(&health, "/livez").await, failed);
        let excluded = "200 [+]ping ok\n[+]poststarthook/x excluded: ok\n[+]shutdown ok\nreadyz check passed\n";
        assert_eq!(check(&health, "/readyz?verbose&exclude=poststarthook/x").await, excluded);
        started.store(true, Ordering::Release);
        for (uri, want) in [
            ("/healthz", "200 ok"),
            ("/readyz", "200 ok"),
            ("/readyz/shutdown", "200 ok"),
            ("/livez/shutdown", "none"),
            ("/readyz/nothing", "none"),
            ("/metrics", "none"),
            ("/livez?verbose", "200 [+]ping ok\n[+]poststarthook/x ok\nlivez check passed\n"),
        ] {
            assert_eq!(check(&health, uri).await, want, "{uri}");
        }
    }

    #[tokio::test]
    async fn indicators_count_what_was_asked_of_all() {
        let started = Arc::new(AtomicBool::new(false));
        let health = Health::new(vec![Check::new("ping", || true), Check::done("started", &started)]);
        assert_eq!(health.indicators(), "");
        check(&health, "/livez").await;
        check(&health, "/livez/ping").await;
        check(&health, "/readyz?exclude=started").await;
        started.store(true, Ordering::Release);
        check(&health, "/livez").await;
        assert_eq!(
            health.indicators(),
            "# HELP kubernetes_healthcheck [STABLE] This metric records the result of a single healthcheck.\n\
             # TYPE kubernetes_healthcheck gauge\n\
             kubernetes_healthcheck{name=\"ping\",type=\"livez\"} 1\n\
             kubernetes_healthcheck{name=\"ping\",type=\"readyz\"} 1\n\
             kubernetes_healthcheck{name=\"started\",type=\"livez\"} 1\n\
             # HELP kubernetes_healthchecks_total [STABLE] This metric records the results of all healthcheck.\n\
             # TYPE kubernetes_healthchecks_total counter\n\
             kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"livez\"} 2\n\
             kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"readyz\"} 1\n\
             kubernetes_healthchecks_total{name=\"started\",status=\"error\",type=\"livez\"} 1\n\
             kubernetes_healthchecks_total{name=\"started\",status=\"success\",type=\"livez\"} 1\n"
        );
        health.reset();
        assert_eq!(health.indicators(), "");
    }
}
