//! `/healthz`, `/livez`, `/readyz`: what is well, check by check.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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

/// Every check, in the order they are printed.
#[derive(Default)]
pub struct Health {
    pub checks: Vec<Check>,
}

impl Health {
    /// Answers a health path; `None` when it is none.
    pub fn respond(&self, path: &str, query: &Query) -> Option<transport::Response> {
        let trimmed = path.strip_prefix('/')?;
        let (endpoint, name) = trimmed.split_once('/').unwrap_or((trimmed, ""));
        let name = name.strip_suffix('/').unwrap_or(name);
        if !matches!(endpoint, "healthz" | "livez" | "readyz") {
            return None;
        }
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
            } else if (check.ok)() {
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
        let health = Health { checks };
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
}
