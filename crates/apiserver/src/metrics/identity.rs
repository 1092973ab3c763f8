//! Who asked, whether that could be told, and whether they might: under upstream's names. No name of a user is a
//! label: those that upstream knows have their own, and everybody else is somebody.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use stdx::metrics::hot::Hot;
use stdx::metrics::{Page, Type, exponential};

use crate::authz::Decision;

/// Users that are told apart.
const USERS: [&str; 7] =
    ["admin", "client", "email_id", "kube_proxy", "kubelet", "other", "system:serviceaccount:kube-system:default"];
const EMAIL: usize = 2;
const OTHER: usize = 5;

/// Which of [`USERS`].
fn user(name: &str) -> usize {
    let known = USERS.iter().position(|known| *known == name && *known != "email_id" && *known != "other");
    known.unwrap_or(if name.contains('@') { EMAIL } else { OTHER })
}

const IDENTIFIED: [&str; 2] = ["failure", "success"];
const DECIDED: [&str; 3] = ["allowed", "denied", "no-opinion"];

/// The upper ends of the buckets, in seconds.
static ENDS: LazyLock<Vec<f64>> = LazyLock::new(|| exponential(0.001, 2.0, 15));

/// The counters. Clones share them.
#[derive(Clone)]
pub struct Identity(Arc<Counters>);

struct Counters {
    users: [AtomicU64; USERS.len()],
    identified: [Hot; IDENTIFIED.len()],
    decided: [Hot; DECIDED.len()],
}

impl Default for Identity {
    fn default() -> Self {
        Self(Arc::new(Counters {
            users: Default::default(),
            identified: std::array::from_fn(|_| Hot::new(&ENDS)),
            decided: std::array::from_fn(|_| Hot::new(&ENDS)),
        }))
    }
}

impl Identity {
    /// It was found out who asks, or that it cannot be: `user` is their name.
    pub fn identified(&self, user: Option<&str>, took: Duration) {
        self.0.identified[usize::from(user.is_some())].observe(took.as_secs_f64());
        if let Some(name) = user {
            self.0.users[self::user(name)].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// It was decided whether they may.
    pub fn decided(&self, decision: &Decision, took: Duration) {
        let at = match decision {
            Decision::Allow { .. } => 0,
            Decision::Deny { .. } => 1,
            Decision::NoOpinion { .. } => 2,
        };
        self.0.decided[at].observe(took.as_secs_f64());
    }

    /// Writes all families.
    pub fn render(&self, page: &mut Page) {
        let name = "authenticated_user_requests";
        page.family(name, Type::Counter, "Counter of authenticated requests broken out by username.");
        for (user, count) in USERS.iter().zip(&self.0.users) {
            page.sample(name, &[("username", user)], count.load(Ordering::Relaxed) as f64);
        }
        family(
            page,
            &IDENTIFIED,
            &self.0.identified,
            ("authentication_attempts", "Counter of authenticated attempts."),
            ("authentication_duration_seconds", "Authentication duration in seconds broken out by result."),
        );
        family(
            page,
            &DECIDED,
            &self.0.decided,
            ("authorization_attempts_total", "Counter of authorization attempts broken down by result."),
            ("authorization_duration_seconds", "Authorization duration in seconds broken out by result."),
        );
    }
}

/// A name and what it means.
type Named<'a> = (&'a str, &'a str);

/// How often each result came, and how long that took.
fn family(page: &mut Page, results: &[&str], all: &[Hot], count: Named, took: Named) {
    page.family(count.0, Type::Counter, count.1);
    for (result, hot) in results.iter().zip(all) {
        page.sample(count.0, &[("result", result)], hot.count() as f64);
    }
    page.family(took.0, Type::Histogram, took.1);
    for (result, hot) in results.iter().zip(all) {
        hot.render(page, took.0, &[("result", result)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_is_a_label_but_those_that_are_known() {
        for (name, want) in [
            ("kubelet", "kubelet"),
            ("jane@example.com", "email_id"),
            ("email_id", "other"),
            ("system:serviceaccount:ns:a", "other"),
            ("", "other"),
        ] {
            assert_eq!(USERS[user(name)], want, "{name}");
        }
    }

    #[test]
    fn what_is_counted_is_written() {
        let identity = Identity::default();
        identity.identified(Some("a@b"), Duration::from_millis(1));
        identity.identified(None, Duration::from_millis(3));
        identity.decided(&Decision::Deny { reason: String::new() }, Duration::ZERO);
        let mut page = Page::new();
        identity.render(&mut page);
        let page = page.finish();
        for line in [
            "authenticated_user_requests{username=\"email_id\"} 1",
            "authentication_attempts{result=\"failure\"} 1",
            "authentication_attempts{result=\"success\"} 1",
            "authentication_duration_seconds_bucket{result=\"failure\",le=\"0.002\"} 0",
            "authentication_duration_seconds_bucket{result=\"failure\",le=\"0.004\"} 1",
            "authorization_attempts_total{result=\"denied\"} 1",
            "authorization_attempts_total{result=\"allowed\"} 0",
            "authorization_duration_seconds_count{result=\"denied\"} 1",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in {page}");
        }
    }
}
